"""Calls to whichever JobManager leads: all that a client of the gRPC API has to know, in one page.

Three things make a client survive the death of a JobManager:

1. It tries again what only failed for now: another code means that the request itself is wrong.
2. It goes where a JobManager that does not lead points to, in the metadata "holdover-leader".
3. It sends the highest epoch that it has seen, and drops answers of leaders with an older one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from holdover.v1.jobmanager_pb2 import JobStatus, WatchJobRequest
from holdover.v1.jobmanager_pb2_grpc import JobManagerStub

_FOR_NOW = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
# A watch is opened anew after this time: a leader that has fallen silent is left then.
_WATCH_TIMEOUT_S = 30.0
_PING = [("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 5_000)]


class Leader:
    """The leader among the JobManagers at some addresses (`host:port`), followed for `patience_s`.

    With `certificates`, a directory that `holdover certs` has made, connections are secured.
    """

    def __init__(
        self, addresses: Sequence[str], certificates: Path | None = None, patience_s: float = 60.0
    ) -> None:
        self._addresses = list(addresses)
        self._certificates = certificates
        self._patience_s = patience_s
        self._channels: dict[str, grpc.Channel] = {}
        self._hint = ""
        self.epoch = 0

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels.values():
            channel.close()

    def call(self, invoke: Callable[[JobManagerStub], Any]) -> Any:
        """The answer of `invoke(stub)`, which must be safe to repeat: all calls of the API are."""
        return next(self._answers(lambda stub: iter([invoke(stub)])))

    def watch(self, job_id: str) -> Iterator[JobStatus]:
        """The status of a job now and after each change, until its end, over all failovers."""
        request = WatchJobRequest(job_id=job_id)

        def open_watch(stub: JobManagerStub) -> Iterator[Any]:
            request.leader_epoch = self.epoch
            return iter(stub.WatchJob(request, timeout=_WATCH_TIMEOUT_S))

        for answer in self._answers(open_watch):
            yield answer.job
            if answer.job.ended_wall_ms:
                return

    def _answers(self, invoke: Callable[[JobManagerStub], Iterator[Any]]) -> Iterator[Any]:
        deadline_s = time.monotonic() + self._patience_s
        turn = 0
        while True:
            address = self._hint or self._addresses[turn % len(self._addresses)]
            try:
                for answer in invoke(JobManagerStub(self.channel(address))):
                    if answer.leader_epoch < self.epoch:
                        break  # its successor was seen already
                    self.epoch = answer.leader_epoch
                    yield answer
                    deadline_s = time.monotonic() + self._patience_s
            except grpc.RpcError as error:
                hint = _leader_in_metadata(error)
                if hint is None and error.code() not in _FOR_NOW:
                    raise
                if time.monotonic() > deadline_s:
                    raise
                self._hint = hint if hint and hint != address else ""
            turn += 1
            time.sleep(0.2)

    def channel(self, address: str) -> grpc.Channel:
        """The connection to one of the JobManagers."""
        if address not in self._channels:
            if self._certificates is None:
                self._channels[address] = grpc.insecure_channel(address, options=_PING)
            else:
                ca, key, own = (
                    (self._certificates / name).read_bytes()
                    for name in ("ca.pem", "client-key.pem", "client.pem")
                )
                credentials = grpc.ssl_channel_credentials(ca, key, own)
                self._channels[address] = grpc.secure_channel(address, credentials, options=_PING)
        return self._channels[address]


def _leader_in_metadata(error: grpc.RpcError) -> str | None:
    """Where a JobManager that does not lead points to, perhaps nowhere; None from any other."""
    metadata: Any = error.trailing_metadata()
    address: str | None = dict(metadata or ()).get("holdover-leader")
    return address
