"""Messages over a byte stream, however it is cut."""

from __future__ import annotations

import itertools
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdover.runtime.frames import FrameProtocol
from holdover.runtime.processes import TASK_MESSAGE_BYTES_MAX, ExitStatus
from holdover.runtime.task_socket import FRAME_HEADER, TaskSocket


@given(
    messages=st.lists(st.binary(max_size=50), max_size=8),
    cuts=st.lists(st.integers(0, 500), max_size=20),
)
def test_messages_are_whole_wherever_the_stream_is_cut(
    messages: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(FRAME_HEADER.pack(len(message)) + message for message in messages)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    async def received() -> list[bytes | None]:
        protocol = FrameProtocol()
        for start, end in itertools.pairwise(bounds):
            protocol.data_received(stream[start:end])
        protocol.connection_lost(None)
        return [await protocol.receive() for _ in range(len(messages) + 1)]

    # Nothing in it waits, so it runs to its end without a loop.
    with pytest.raises(StopIteration) as end_of_coroutine:
        received().send(None)
    assert end_of_coroutine.value.value == [*messages, None]


def test_a_length_over_the_limit_ends_the_connection() -> None:
    protocol = FrameProtocol()
    protocol.data_received(FRAME_HEADER.pack(TASK_MESSAGE_BYTES_MAX + 1))
    assert protocol.ended


def test_a_task_socket_sends_whole_messages_from_many_threads() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = TaskSocket(ours), TaskSocket(theirs)
    messages = [bytes([number]) * 10_000 for number in range(20)]
    threads = [threading.Thread(target=sender.send, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    received = [receiver.receive() for _ in messages]
    for thread in threads:
        thread.join()
    sender.close()
    assert sorted(message or b"" for message in received) == messages
    assert receiver.receive() is None
    receiver.close()


def test_a_task_socket_refuses_what_is_over_the_limit() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(ValueError, match="over the limit"):
            TaskSocket(ours).send(bytes(TASK_MESSAGE_BYTES_MAX + 1))
        theirs.sendall(FRAME_HEADER.pack(TASK_MESSAGE_BYTES_MAX + 1))
        with pytest.raises(ValueError, match="over the limit"):
            TaskSocket(ours).receive()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (ExitStatus(3, None), "exited with code 3"),
        (ExitStatus(None, 9), "died by signal 9 (SIGKILL)"),
        (ExitStatus(None, 63), "died by signal 63"),
        (ExitStatus(None, None), "was lost together with the process that starts task processes"),
    ],
)
def test_an_exit_status_reads_well(status: ExitStatus, text: str) -> None:
    assert status.text == text
