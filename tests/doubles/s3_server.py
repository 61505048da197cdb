"""An S3 server in a process of its own, and a proxy before it that throttles, fails or loses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.doubles.ports import free_port

START_TIMEOUT_S: Final = 120.0
ANSWER_TIMEOUT_S: Final = 20.0
NO_ANSWER: Final = -1
ACCESS_KEY: Final = "AKIAHOLDOVERTESTKEY0"
SECRET_KEY: Final = "verySecret/notToBeLogged+0123456789abcd"
_HEAD_END = b"\r\n\r\n"
_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request,"
    " SignedHeaders=host, Signature=none"
)


def environment(endpoint: str) -> dict[str, str]:
    """What a process that uses the server needs to know."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }


@contextlib.contextmanager
def moto_server() -> Iterator[int]:
    """A server without buckets; its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("s3_process.py")), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            assert process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline_s, "the S3 server does not listen"
            time.sleep(0.05)
        yield port
    finally:
        process.communicate()


def make_bucket(port: int, bucket: str) -> None:
    """Make an empty bucket."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{bucket}",
        method="PUT",
        headers={"Authorization": _AUTHORIZATION},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
        assert answer.status == 200


@dataclass
class Fault:
    """What happens to `count` requests that match, after the next `skip` of them.

    `status` is answered, with `code` in the body, instead of asking the server; 0 asks it and
    loses the answer, and `NO_ANSWER` lets the client wait.
    """

    status: int
    count: int
    code: str = "SlowDown"
    method: str = ""
    skip: int = 0
    matching: Callable[[str], bool] = field(default=lambda _: True)


class S3Proxy:
    """Passes requests on, and keeps what they were: `PUT /bucket/key`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._callers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.port = 0

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for all of its requests."""
        task = asyncio.current_task()
        assert task is not None
        self._callers[task] = writer
        try:
            while True:
                head = await reader.readuntil(_HEAD_END)
                body = await reader.readexactly(_content_length(head))
                method, target = head.split(b" ", 2)[:2]
                answer = await self._answer(method.decode(), target.decode(), head, body)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return  # the client has closed
        except asyncio.CancelledError:
            return  # by `close`, and asyncio reports a connection's cancellation as an error
        finally:
            del self._callers[task]
            writer.transport.abort()

    async def close(self) -> None:
        """End all connections."""
        for writer in self._callers.values():
            writer.transport.abort()
        if self._callers:
            await asyncio.wait(list(self._callers), timeout=0.1)
        for caller in self._callers:
            caller.cancel()

    async def _answer(self, method: str, target: str, head: bytes, body: bytes) -> bytes | None:
        self.requests.append(f"{method} {target}")
        fault = self._fault(method, target)
        if fault is not None and fault.status == NO_ANSWER:
            await asyncio.sleep(ANSWER_TIMEOUT_S)
            return None
        if fault is not None and fault.status:
            text = f"<Error><Code>{fault.code}</Code><Message>{ACCESS_KEY}</Message></Error>"
            return (
                f"HTTP/1.1 {fault.status} Fault\r\nContent-Length: {len(text)}\r\n"
                f"Content-Type: application/xml\r\n\r\n{text}"
            ).encode()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            try:
                writer.write(_with_header(head, b"Connection: close") + body)
                await writer.drain()
                answer = await reader.read(-1)
            finally:
                writer.transport.abort()
        return None if fault is not None else _without_close(answer, method)

    def _fault(self, method: str, target: str) -> Fault | None:
        for fault in self.faults:
            if fault.count and fault.method in ("", method) and fault.matching(target):
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.count -= 1
                return fault
        return None


@contextlib.asynccontextmanager
async def s3_proxy(server_port: int) -> AsyncIterator[S3Proxy]:
    """A proxy before the server."""
    proxy = S3Proxy(server_port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0, limit=1 << 20)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


def _with_header(head: bytes, line: bytes) -> bytes:
    first, _, rest = head.partition(b"\r\n")
    return first + b"\r\n" + line + b"\r\n" + rest


def _without_close(answer: bytes, method: str) -> bytes:
    """The answer for a connection that goes on."""
    head, _, body = answer.partition(_HEAD_END)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
    if method != "HEAD" and not any(x.lower().startswith(b"content-length:") for x in lines):
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + _HEAD_END + body
