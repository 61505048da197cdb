"""A gRPC channel that goes on when the certificate with which it was opened is replaced.

gRPC fixes a channel's credentials when the channel is made: once they are out of date, it could
never connect again. Here, calls that begin after a replacement go over a channel that knows the new
files; calls that run already end where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from holdover.runtime.transport_security import CredentialFiles, Credentials

#: A channel with these credentials.
OpenChannel = Callable[[Credentials], grpc.aio.Channel]


class _Generation:
    """A channel with the credentials of one version, and the calls that run on it."""

    def __init__(self, channel: grpc.aio.Channel, version: int) -> None:
        self.channel = channel
        self.version = version
        self.calls = 0
        self._methods: dict[tuple[str, str], Any] = {}

    def method(self, kind: str, path: str, options: dict[str, Any]) -> Any:
        """The channel's own way to call a method."""
        if (kind, path) not in self._methods:
            self._methods[kind, path] = getattr(self.channel, kind)(path, **options)
        return self._methods[kind, path]


class RenewedChannel(grpc.aio.Channel):
    """See the module."""

    def __init__(self, open_channel: OpenChannel, files: CredentialFiles) -> None:
        self._open_channel = open_channel
        self._files = files
        self._closed = False
        self._old: list[_Generation] = []
        self._closings: set[asyncio.Future[None]] = set()
        credentials = files.current
        self._generation = _Generation(open_channel(credentials), credentials.version)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        """See `grpc.aio.Channel.close`."""
        self._closed = True
        for generation in (*self._old, self._generation):
            await generation.channel.close(grace)
        self._old.clear()
        await asyncio.gather(*self._closings)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """See `grpc.aio.Channel.get_state`."""
        return self._newest().channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """See `grpc.aio.Channel.wait_for_state_change`."""
        await self._newest().channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """See `grpc.aio.Channel.channel_ready`."""
        await self._newest().channel.channel_ready()

    def unary_unary(self, method: str, *serializers: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_unary`."""
        return self._method("unary_unary", method, serializers, options)

    def unary_stream(self, method: str, *serializers: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.unary_stream`."""
        return self._method("unary_stream", method, serializers, options)

    def stream_unary(self, method: str, *serializers: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_unary`."""
        return self._method("stream_unary", method, serializers, options)

    def stream_stream(self, method: str, *serializers: Any, **options: Any) -> Any:
        """See `grpc.aio.Channel.stream_stream`."""
        return self._method("stream_stream", method, serializers, options)

    def _method(
        self, kind: str, path: str, serializers: tuple[Any, ...], options: dict[str, Any]
    ) -> Callable[..., Any]:
        names = ("request_serializer", "response_deserializer")
        every = {**dict(zip(names, serializers, strict=False)), **options}

        def call(*arguments: Any, **keywords: Any) -> Any:
            generation = self._newest()
            running = generation.method(kind, path, every)(*arguments, **keywords)
            generation.calls += 1
            running.add_done_callback(partial(self._ended, generation))
            return running

        return call

    def _newest(self) -> _Generation:
        credentials = self._files.current
        if credentials.version != self._generation.version and not self._closed:
            old = self._generation
            self._generation = _Generation(self._open_channel(credentials), credentials.version)
            self._old.append(old)
            self._close_if_idle(old)
        return self._generation

    def _ended(self, generation: _Generation, _call: object) -> None:
        generation.calls -= 1
        self._close_if_idle(generation)

    def _close_if_idle(self, generation: _Generation) -> None:
        """Closing cancels what runs, so an old channel is closed after its last call."""
        if generation.calls == 0 and generation in self._old:
            self._old.remove(generation)
            closing = asyncio.ensure_future(generation.channel.close())
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
