"""Offers that wait for what they have read."""

from __future__ import annotations

from holdover.ids import AttemptKey
from holdover.v1 import common_pb2, job_pb2
from jobmanager.scheduler.deferred_offers import DeferredOffer, DeferredOffers
from jobmanager.scheduler.execution_graph import ExecutionGraph
from tests.unit.jobmanager.scheduler.job_graphs import FORWARD, HASH, connect, source, stage
from tests.unit.jobmanager.scheduler.scenes import finished, initialized, replayed

WIDTH = 3


def graph() -> ExecutionGraph:
    """s -> (forward) m -> (hash) r, of which nothing has finished."""
    job = job_pb2.JobGraph(
        job_id="job", vertices=[source("s", WIDTH), stage("m", WIDTH), stage("r", WIDTH)]
    )
    connect(job, "s", "m", FORWARD, 1)
    connect(job, "m", "r", HASH, WIDTH)
    shapes = [initialized("s", WIDTH), *(initialized(v, WIDTH, inputs=1) for v in "mr")]
    return replayed(job, shapes)


def offer(vertex_id: str, subtask: int, worker_id: str = "tm-0") -> DeferredOffer:
    """What a worker offers."""
    key = AttemptKey("job", vertex_id, subtask, 0, 1)
    return DeferredOffer(key, worker_id, common_pb2.FinishedExecution(attempt=key.to_proto()))


def defer(offers: DeferredOffers, of: ExecutionGraph, *deferred: DeferredOffer) -> list[bool]:
    """Offer them, one after another."""
    return [offers.defer(o, of.vertex_at(o.key.vertex_id, o.key.subtask)) for o in deferred]


def finish(offers: DeferredOffers, of: ExecutionGraph, vertex_id: str, subtask: int) -> None:
    """A subtask finishes."""
    of.apply(finished(vertex_id, subtask))
    offers.finished(of.vertex_at(vertex_id, subtask))


def test_an_offer_waits_for_the_subtask_that_it_has_read_and_for_no_other() -> None:
    of = graph()
    offers = DeferredOffers(of)
    deferred = [offer("m", i) for i in range(WIDTH)]
    assert defer(offers, of, *deferred) == [True] * WIDTH
    assert offers.take_ready() == []
    finish(offers, of, "s", 1)
    assert offers.take_ready() == [deferred[1]]
    assert list(offers) == [deferred[0].key, deferred[2].key]


def test_an_offer_that_has_read_a_whole_vertex_waits_for_its_last_subtask() -> None:
    of = graph()
    offers = DeferredOffers(of)
    defer(offers, of, offer("r", 0))
    for subtask in range(WIDTH):
        assert offers.take_ready() == []
        finish(offers, of, "m", subtask)
    assert offers.take_ready() == [offer("r", 0)]
    assert defer(offers, of, offer("r", 0)) == [False]


def test_an_offer_is_judged_when_another_attempt_of_its_subtask_has_finished() -> None:
    of = graph()
    offers = DeferredOffers(of)
    defer(offers, of, offer("m", 0))
    finish(offers, of, "m", 0)
    assert offers.take_ready() == [offer("m", 0)]


def test_producers_stand_before_those_that_have_read_them() -> None:
    of = graph()
    offers = DeferredOffers(of)
    defer(offers, of, offer("r", 1), offer("m", 2))
    for subtask in range(WIDTH):
        finish(offers, of, "m", subtask)
    finish(offers, of, "s", 2)
    assert offers.take_ready() == [offer("m", 2), offer("r", 1)]


def test_copies_of_an_attempt_at_two_services_wait_each_for_itself() -> None:
    """Who has one of them may be lost again, or offer it anew, and the other one stays."""
    of = graph()
    offers = DeferredOffers(of)
    copies = [offer("m", 0, "ss-0"), offer("m", 0, "ss-1")]
    defer(offers, of, *copies)
    offers.forget_worker("ss-1")
    defer(offers, of, copies[1])
    finish(offers, of, "s", 0)
    assert offers.take_ready() == copies
    offers.forget_worker("ss-0")
    defer(offers, of, offer("r", 0, "ss-0"), offer("r", 0, "ss-1"))
    assert offers.take_all() == [offer("r", 0, "ss-0"), offer("r", 0, "ss-1")]
    assert not offers


def test_a_worker_that_says_anew_what_it_holds_has_offered_nothing_before() -> None:
    of = graph()
    offers = DeferredOffers(of)
    defer(offers, of, offer("m", 0, "tm-0"), offer("m", 1, "tm-1"))
    offers.forget_worker("tm-0")
    offers.forget_worker("tm-2")
    assert list(offers) == [offer("m", 1).key]
    finish(offers, of, "s", 0)
    assert offers.take_ready() == []
    assert offers.take_all() == [offer("m", 1, "tm-1")]
    assert not offers


def test_an_offer_that_is_repeated_is_judged_once() -> None:
    of = graph()
    offers = DeferredOffers(of)
    for _ in range(3):
        offers.forget_worker("tm-0")
        defer(offers, of, offer("m", 0))
    finish(offers, of, "s", 0)
    assert offers.take_ready() == [offer("m", 0)]
    assert offers.take_ready() == []
