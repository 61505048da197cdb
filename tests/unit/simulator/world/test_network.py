"""The simulated network under faults: deaths, cuts, silence, pauses, names, the data plane."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from simulator.world.links import ConnectionLost
from tests.unit.simulator.world.echo_world import PLAIN, PORT, EchoWorld, call, echo_world, outcome

#: Well above the three or four latencies that a call takes.
PROMPT_S = 0.01


def in_client(site: EchoWorld, work: Coroutine[Any, Any, Any]) -> Any:
    """Run work of the client's process to its end."""

    async def main() -> Any:
        return await site.client.spawn(work)

    return site.world.run(main())


def nobody(site: EchoWorld) -> contextvars.Context:
    """In which faults happen."""
    return site.world.loop.world_process.context


# ---------------------------------------------------------------------- deaths


def test_a_killed_server_breaks_the_calls_of_its_peers_at_once() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, float]:
            waiting = asyncio.ensure_future(outcome(site.channel(), "hang"))
            await asyncio.sleep(1)
            site.world.kill(site.server)
            return await waiting, site.world.now_s

        assert in_client(site, work()) == ("UNAVAILABLE", pytest.approx(1.001))
        assert site.echo.events == [("begun", 0.003)]


def test_a_killed_client_cancels_its_handlers() -> None:
    with echo_world() as site:

        async def main() -> None:
            site.client.spawn(call(site.channel(), "hang"))
            await asyncio.sleep(1)
            site.world.kill(site.client)
            await asyncio.sleep(1)

        site.world.run(main())
        assert site.echo.events[1:] == [("cancelled", 1.001), ("finally", 1.001)]


def test_a_host_without_power_is_silence_until_keepalive() -> None:
    """P58."""
    with echo_world() as site:

        async def work() -> list[Any]:
            channel = site.channel()
            patient = asyncio.ensure_future(outcome(channel, "hang"))
            hasty = asyncio.ensure_future(outcome(channel, "hang", timeout=7.0))
            await asyncio.sleep(5)
            site.world.power_loss(site.server_host)
            ends = [await hasty, site.world.now_s, await patient, site.world.now_s]
            return [*ends, await outcome(channel, "echo"), site.world.now_s]

        ends = in_client(site, work())
        assert ends[::2] == ["DEADLINE_EXCEEDED", "UNAVAILABLE", "UNAVAILABLE"]
        assert ends[1] == pytest.approx(7.0)
        # It was heard last when the connection was made.
        assert ends[3] == pytest.approx(40.002)
        assert ends[5] - ends[3] == pytest.approx(PLAIN.connect_timeout_s)


def test_a_host_that_has_power_again_refuses_what_its_dead_processes_had_promised() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, float, str]:
            channel = site.channel()
            waiting = asyncio.ensure_future(outcome(channel, "hang"))
            await asyncio.sleep(1)
            site.world.power_loss(site.server_host)
            await asyncio.sleep(2)
            site.world.power_on(site.server_host)
            site.serve()
            return await waiting, site.world.now_s, await outcome(channel, "echo")

        assert in_client(site, work()) == ("UNAVAILABLE", pytest.approx(3.001), "OK")


def test_a_new_life_on_the_same_port_gets_no_call_of_the_old_one() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, list[tuple[str, float]]]:
            channel = site.channel()
            await call(channel, "echo", b"old")
            site.world.kill(site.server)
            _, echo = site.serve()
            lost = asyncio.ensure_future(outcome(channel, "echo"))
            end = await lost
            await call(channel, "echo", b"new")
            return end, echo.events

        end, events = in_client(site, work())
        assert end == "UNAVAILABLE"
        assert [what for what, _ in events] == ["new"]


def test_nothing_of_a_dead_client_acts_again() -> None:
    with echo_world() as site:
        seen: list[str] = []

        async def work() -> None:
            try:
                await call(site.channel(), "hang")
            finally:
                seen.append("finally")

        async def main() -> None:
            site.client.spawn(work())
            await asyncio.sleep(1)
            site.world.kill(site.client)
            await asyncio.sleep(100)

        site.world.run(main())
        assert seen == []


# ---------------------------------------------------------------------- cuts


@pytest.mark.parametrize("both", [True, False])
def test_what_was_sent_over_a_cut_arrives_in_order_after_healing(both: bool) -> None:
    with echo_world() as site:

        async def work() -> float:
            channel = site.channel()
            await call(channel, "echo", b"0")
            calls = [asyncio.ensure_future(call(channel, "echo", b"1"))]
            await asyncio.sleep(0.0005)
            token = site.network.cut([site.client_host], [site.server_host], both=both)
            calls += [asyncio.ensure_future(call(channel, "echo", b"%d" % n)) for n in range(2, 9)]
            await asyncio.sleep(5)
            site.network.heal(token)
            await asyncio.gather(*calls)
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(5.0, abs=PROMPT_S)
        assert [what for what, _ in site.echo.events] == [str(number) for number in range(9)]


def test_what_was_under_way_does_not_overtake_what_a_short_cut_held_up() -> None:
    with echo_world() as site:

        async def work() -> None:
            channel = site.channel()
            await call(channel, "echo", b"0")
            calls = [asyncio.ensure_future(call(channel, "echo", b"1"))]
            await asyncio.sleep(0.0006)
            calls += [asyncio.ensure_future(call(channel, "echo", b"%d" % n)) for n in range(2, 5)]
            await asyncio.sleep(0.0003)
            token = site.network.cut([site.client_host], [site.server_host], both=False)
            await asyncio.sleep(0.0003)  # the first of them has arrived, the others have not
            site.network.heal(token)
            await asyncio.gather(*calls)

        in_client(site, work())
        assert [what for what, _ in site.echo.events] == [str(number) for number in range(5)]


def test_answers_that_are_cut_off_arrive_after_healing() -> None:
    with echo_world() as site:

        async def work() -> tuple[bytes, float]:
            channel = site.channel()
            await call(channel, "echo")
            token = site.network.cut([site.server_host], [site.client_host], both=False)
            waiting = asyncio.ensure_future(call(channel, "echo", b"late"))
            await asyncio.sleep(5)
            assert site.echo.events[-1][0] == "late"
            site.network.heal(token)
            return await waiting, site.world.now_s

        assert in_client(site, work()) == (b"late", pytest.approx(5.0, abs=PROMPT_S))


def test_a_cut_that_lasts_breaks_the_connection_on_both_sides_and_a_call_makes_a_new_one() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, float, str]:
            channel = site.channel()
            waiting = asyncio.ensure_future(outcome(channel, "hang"))
            await asyncio.sleep(1)
            token = site.network.cut([site.server_host], [site.client_host], both=True)
            end, broken_s = await waiting, site.world.now_s
            await asyncio.sleep(10)
            site.network.heal(token)
            return end, broken_s, await outcome(channel, "echo")

        end, broken_s, after = in_client(site, work())
        assert (end, after) == ("UNAVAILABLE", "OK")
        assert 30 < broken_s < 41.1
        assert [what for what, _ in site.echo.events] == ["begun", "cancelled", "finally", ""]
        assert site.network.messages_in_flight == 0


def test_an_idle_connection_survives_a_cut_that_is_shorter_than_keepalive() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, str]:
            channel = site.channel()
            waiting = asyncio.ensure_future(outcome(channel, "hang", timeout=300))
            for _ in range(3):
                await asyncio.sleep(31)
                token = site.network.cut([site.client_host], [site.server_host], both=True)
                await asyncio.sleep(9)
                site.network.heal(token)
            return await outcome(channel, "echo"), await waiting

        assert in_client(site, work()) == ("OK", "DEADLINE_EXCEEDED")


def test_a_name_that_moves_is_found_by_the_next_connection() -> None:
    """P57."""
    with echo_world() as site:

        async def work() -> list[str]:
            channel = site.channel()
            before = await outcome(channel, "echo")
            other = site.world.process(site.world.host("elsewhere"), "other")
            server = site.network.of(other).server(f"0.0.0.0:{PORT}")
            other.spawn(server.start())
            site.network.move("server", other.host)
            still = await outcome(channel, "echo")
            site.world.kill(site.server)
            await asyncio.sleep(1)
            return [before, still, await outcome(channel, "echo")]

        assert in_client(site, work()) == ["OK", "OK", "UNIMPLEMENTED"]


def test_a_host_with_a_new_address_is_silent_under_the_old_one() -> None:
    """P57."""
    with echo_world() as site:

        async def work() -> list[str]:
            channel = site.channel()
            before = await outcome(channel, "echo")
            site.network.change_address(site.server_host)
            old = await outcome(channel, "echo", timeout=5)
            anew = await outcome(site.channel(), "echo", timeout=5)
            broken = await outcome(channel, "echo", timeout=60)
            return [before, old, anew, broken, await outcome(channel, "echo", timeout=5)]

        ends = in_client(site, work())
        assert ends == ["OK", "DEADLINE_EXCEEDED", "OK", "UNAVAILABLE", "OK"]


# ---------------------------------------------------------------------- time


def test_a_deadline_ends_a_call_exactly_then_and_its_handler_a_latency_later() -> None:
    """P54."""
    with echo_world() as site:

        async def work() -> tuple[str, float]:
            end = await outcome(site.channel(), "hang", timeout=2.0)
            ended_s = site.world.now_s
            await asyncio.sleep(1)
            return end, ended_s

        assert in_client(site, work()) == ("DEADLINE_EXCEEDED", pytest.approx(2.0, abs=1e-9))
        assert ("cancelled", 2.001) in site.echo.events


def test_a_deadline_keeps_the_clock_of_its_process() -> None:
    with echo_world() as site:
        site.client_host.set_clock_rate(0.5, site.world.now_s)

        async def work() -> float:
            await outcome(site.channel(), "hang", timeout=2.0)
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(4.0)


def test_a_paused_server_answers_when_it_goes_on() -> None:
    with echo_world() as site:

        async def work() -> float:
            channel = site.channel()
            await call(channel, "echo")
            site.server.pause()
            waiting = asyncio.ensure_future(call(channel, "echo"))
            await asyncio.sleep(3)
            assert not waiting.done()
            site.server.resume()
            await waiting
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(3.0, abs=PROMPT_S)


def test_a_paused_server_takes_no_connection() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, float]:
            site.server.pause()
            return await outcome(site.channel(), "echo"), site.world.now_s

        assert in_client(site, work()) == ("UNAVAILABLE", pytest.approx(PLAIN.connect_timeout_s))


def test_a_server_that_is_paused_for_long_is_given_up_and_learns_it_when_it_goes_on() -> None:
    with echo_world() as site:

        async def work() -> tuple[str, float, str]:
            channel = site.channel()
            waiting = asyncio.ensure_future(outcome(channel, "hang"))
            await asyncio.sleep(1)
            site.server.pause()
            end, broken_s = await waiting, site.world.now_s
            await asyncio.sleep(10)
            assert [what for what, _ in site.echo.events] == ["begun"]
            site.server.resume()
            return end, broken_s, await outcome(channel, "echo")

        assert in_client(site, work()) == ("UNAVAILABLE", pytest.approx(40.002), "OK")
        assert [what for what, _ in site.echo.events] == ["begun", "cancelled", "finally", ""]


def test_a_transfer_from_a_paused_process_begins_when_it_goes_on() -> None:
    with echo_world() as site:

        async def work() -> float:
            site.server.pause()
            site.world.loop.call_later(3, site.server.resume, context=nobody(site))
            await site.network.transfer(site.server, site.client, 100)
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(3.001)


def test_messages_cost_their_receiver_one_after_the_other() -> None:
    with echo_world(dataclasses.replace(PLAIN, message_cost_s=0.1)) as site:

        async def work() -> list[float]:
            channel = site.channel()
            await call(channel, "echo")
            started_s = site.world.now_s
            await asyncio.gather(*[call(channel, "echo", b"x") for _ in range(10)])
            return [at_s - started_s for what, at_s in site.echo.events if what == "x"]

        handled_s = in_client(site, work())
        assert handled_s == pytest.approx([0.001 + 0.1 * (n + 1) for n in range(10)], abs=0.001)


# ---------------------------------------------------------------------- the data plane


def test_a_transfer_takes_its_bytes_at_the_bandwidth() -> None:
    with echo_world(dataclasses.replace(PLAIN, bytes_per_s=1000.0, small_bytes_max=10)) as site:

        async def work() -> float:
            await site.network.transfer(site.server, site.client, 5000)
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(5.001)


def test_a_transfer_breaks_when_its_source_dies() -> None:
    with echo_world(dataclasses.replace(PLAIN, bytes_per_s=1000.0)) as site:

        async def work() -> float:
            site.world.loop.call_later(2, site.world.kill, site.server, context=nobody(site))
            with pytest.raises(ConnectionLost):
                await site.network.transfer(site.server, site.client, 5000)
            return site.world.now_s

        assert in_client(site, work()) == pytest.approx(2.001)


def test_a_transfer_over_a_cut_arrives_after_healing_or_is_given_up() -> None:
    with echo_world() as site:

        async def transfer(healed_after_s: float) -> float:
            token = site.network.cut([site.server_host], [site.client_host], both=True)
            begun_s = site.world.now_s
            site.world.loop.call_later(
                healed_after_s, site.network.heal, token, context=nobody(site)
            )
            try:
                await site.network.transfer(site.server, site.client, 1000)
            finally:
                took_s = site.world.now_s - begun_s
            return took_s

        assert in_client(site, transfer(5)) == pytest.approx(5.001)
        with pytest.raises(ConnectionLost, match="too long"):
            in_client(site, transfer(50))


def test_a_transfer_that_nobody_waits_for_may_meet_a_cut() -> None:
    with echo_world(dataclasses.replace(PLAIN, bytes_per_s=1000.0)) as site:

        async def work() -> None:
            transfer = site.network.transfer(site.server, site.client, 5000)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(transfer, 1.0)
            site.network.cut([site.server_host], [site.client_host], both=True)
            await asyncio.sleep(100)

        in_client(site, work())
        assert site.world.failures == []


def test_a_port_is_found_with_its_handler_until_its_process_ends() -> None:
    with echo_world() as site:
        handler = object()
        port = site.network.listen(site.client, 0, handler)
        listener = site.network.listener(f"client:{port}")
        assert listener is not None
        assert listener.node.process is site.client
        assert listener.handler is handler
        site.world.kill(site.client)
        assert site.network.listener(f"client:{port}") is None


# ---------------------------------------------------------------------- determinism


def digest_of_a_busy_run() -> str:
    """Calls from three clients over a lossy network with a cut and a crash."""
    with echo_world(dataclasses.replace(PLAIN, latency_s=(0.001, 0.1), loss=0.1), seed=5) as site:
        clients = [site.world.process(site.world.host(f"c{n}"), f"c{n}") for n in range(3)]

        async def work(number: int) -> None:
            channel = site.network.of(clients[number]).channel(f"server:{PORT}")
            for _ in range(20):
                await outcome(channel, "echo", timeout=0.5)

        async def main() -> None:
            tasks = [client.spawn(work(number)) for number, client in enumerate(clients)]
            await asyncio.sleep(2)
            token = site.network.cut([site.server_host], [clients[0].host], both=False)
            await asyncio.sleep(1)
            site.world.kill(site.server)
            site.network.heal(token)
            site.serve()
            await asyncio.wait(tasks)

        site.world.run(main())
        return f"{site.world.trace.digest} {site.world.trace.events}"


def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed() -> None:
    """P64."""
    program = (
        "from tests.unit.simulator.world.test_network import digest_of_a_busy_run as run;"
        "print(run())"
    )
    digests = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert digests[0] == digests[1]
    assert int(digests[0].split()[1]) > 100
