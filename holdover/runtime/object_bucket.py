"""Requests to one bucket: each with time limits, repeated where that may help, with clear errors.

The library's own repetitions are off: it would repeat a write although its process had been
stopped, and its leadership had expired, in between.

Importing this module loads the object store library, which only a process should do that uses it.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import obstore
from obstore import exceptions
from obstore.store import ObjectStore

from holdover.runtime.clock import Clock, Randomness
from holdover.runtime.errors import (
    ObjectConflict,
    ObjectStoreFenced,
    ObjectStoreRefused,
    ObjectStoreUnavailable,
)
from holdover.runtime.log import Log
from holdover.runtime.objects import ObjectVersion, VersionedObject

T = TypeVar("T")

_LIST_CHUNK: Final = 1000
#: Answers that may be others a moment later, beside all of 500 and more.
_TRANSIENT: Final = (408, 409, 425, 429)
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,64})</Code>")
_URL_TAIL = re.compile(r"\?[^\s)]*")

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """How long one operation may take.

    Attributes:
        attempts_max: requests per operation.
        attempt_s: limit of one request, beside the time for its bytes.
        read_s, write_s: limits of an operation, beside the time for its bytes.
        prompt_s: the same for most conditional operations: whoever asks for one has another way,
            and must know why it failed before a time limit of its own.
        bytes_per_s: the slowest connection that is waited for.
        delay_first_s, delay_max_s: pause before the next request; doubles, less a random part.
    """

    attempts_max: int = 40
    attempt_s: float = 5.0
    read_s: float = 60.0
    write_s: float = 20.0
    prompt_s: float = 3.0
    bytes_per_s: float = 1024.0 * 1024.0
    delay_first_s: float = 0.1
    delay_max_s: float = 2.0


class Bucket:
    """The objects of one bucket by key. `url` is scheme and bucket, for messages."""

    def __init__(
        self,
        url: str,
        store: ObjectStore,
        clock: Clock,
        randomness: Randomness,
        policy: RequestPolicy | None = None,
    ) -> None:
        self._url = url
        self._store = store
        self._clock = clock
        self._randomness = randomness
        self._policy = policy or RequestPolicy()
        self._fences: dict[str, Callable[[], bool]] = {}

    def url_of(self, key: str) -> str:
        """The object's full name."""
        return f"{self._url}/{key}"

    def fence(self, prefix: str, may_write: Callable[[], bool]) -> None:
        """See `VersionedObjects.fence`."""
        self._fences[prefix] = may_write

    # Reading

    async def get(self, key: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""

        async def ask() -> bytes:
            async with asyncio.timeout(self._policy.attempt_s):
                result = await obstore.get_async(self._store, key)
            # Now its size is known.
            transfer_s = result.meta["size"] / self._policy.bytes_per_s
            async with asyncio.timeout(self._policy.attempt_s + transfer_s):
                return bytes(await result.bytes_async())

        return await self._call("read", key, ask, self._policy.read_s, has_own_limits=True)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes of an object that has so many. Raises FileNotFoundError."""

        async def ask() -> bytes:
            return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

        return await self._call("read", key, ask, self._policy.read_s, end - start)

    async def get_versioned(self, key: str) -> VersionedObject | None:
        """The whole object with its version, None where there is none."""

        async def ask() -> VersionedObject:
            result = await obstore.get_async(self._store, key)
            meta = result.meta
            version = ObjectVersion(meta["e_tag"], meta["version"])
            return VersionedObject(bytes(await result.bytes_async()), version)

        try:
            return await self._call("read", key, ask, self._policy.prompt_s)
        except FileNotFoundError:
            return None

    async def size(self, key: str) -> int | None:
        """The object's bytes, None where there is none."""

        async def ask() -> int:
            return (await obstore.head_async(self._store, key))["size"]

        try:
            return await self._call("look at", key, ask, self._policy.read_s)
        except FileNotFoundError:
            return None

    async def list_below(self, prefix: str) -> list[tuple[str, int]]:
        """Keys and bytes of all objects below the prefix, which ends where a `/` follows; sorted.

        Memory is that of the names.
        """

        async def ask() -> list[tuple[str, int]]:
            stream = obstore.list(self._store, prefix or None, chunk_size=_LIST_CHUNK)
            return [(meta["path"], meta["size"]) async for chunk in stream for meta in chunk]

        return sorted(await self._call("list", prefix, ask, self._policy.read_s))

    async def list_level(self, prefix: str) -> tuple[list[tuple[str, int]], list[str]]:
        """Objects directly below the prefix, with their bytes, and the prefixes below it."""

        async def ask() -> tuple[list[tuple[str, int]], list[str]]:
            found = await obstore.list_with_delimiter_async(self._store, prefix or None)
            objects = [(meta["path"], meta["size"]) for meta in found["objects"]]
            return objects, list(found["common_prefixes"])

        return await self._call("list", prefix, ask, self._policy.read_s)

    # Writing

    async def put(self, key: str, data: bytes) -> None:
        """Put the object, replacing whatever is there."""
        await self._put(key, data, "overwrite", self._policy.write_s, fenced=True)

    async def put_new(self, key: str, data: bytes, *, prompt: bool = True) -> None:
        """Put an object that nobody has put before; the same bytes may be put twice. `prompt`: see
        `RequestPolicy`. Raises `ObjectConflict`."""
        total_s = self._policy.prompt_s if prompt else self._policy.write_s
        await self._put_if(key, data, "create", total_s, fenced=True)

    async def replace(self, key: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        """See `VersionedObjects.replace`."""
        if version is None:
            return await self._put_if(key, data, "create", self._policy.prompt_s, fenced=False)
        mode: obstore.UpdateVersion = {}
        if version.e_tag is not None:
            mode["e_tag"] = version.e_tag
        if version.version is not None:
            mode["version"] = version.version
        return await self._put_if(key, data, mode, self._policy.prompt_s, fenced=False)

    async def copy(self, source: str, target: str) -> None:
        """Copy within the bucket, replacing what is at `target`."""
        await self._call(
            "copy",
            source,
            lambda: obstore.copy_async(self._store, source, target),
            self._policy.write_s,
            fenced=True,
        )

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects, in any order; those that are missing do not matter."""
        for start in range(0, len(keys), _LIST_CHUNK):
            part = list(keys[start : start + _LIST_CHUNK])

            async def ask(part: list[str] = part) -> None:
                await obstore.delete_async(self._store, part if len(part) > 1 else part[0])

            try:
                await self._call("delete", part[0], ask, self._policy.write_s, fenced=True)
            except FileNotFoundError:
                # One of them was missing, which ends the deletion in some stores: singly, then.
                for key in part if len(part) > 1 else ():
                    await self.delete([key])

    async def _put_if(
        self,
        key: str,
        data: bytes,
        mode: Literal["create"] | obstore.UpdateVersion,
        total_s: float,
        *,
        fenced: bool,
    ) -> ObjectVersion:
        try:
            return await self._put(key, data, mode, total_s, fenced=fenced)
        except ObjectConflict:
            # A request whose answer was lost may have done it.
            found = await self.get_versioned(key)
            if found is not None and found.data == data:
                return found.version
            raise

    async def _put(
        self,
        key: str,
        data: bytes,
        mode: Literal["create", "overwrite"] | obstore.UpdateVersion,
        total_s: float,
        *,
        fenced: bool,
    ) -> ObjectVersion:
        async def ask() -> ObjectVersion:
            result = await obstore.put_async(self._store, key, data, mode=mode, use_multipart=False)
            return ObjectVersion(result["e_tag"], result["version"])

        try:
            return await self._call("write", key, ask, total_s, len(data), fenced=fenced)
        except FileNotFoundError as error:  # there is nothing that could be missing but the bucket
            raise self._refused("write", key, "the bucket does not exist") from error

    # One operation: `ask` makes one request, `has_own_limits` if it limits its time itself.

    async def _call(
        self,
        what: str,
        key: str,
        ask: Callable[[], Awaitable[T]],
        total_s: float,
        size_bytes: int = 0,
        *,
        fenced: bool = False,
        has_own_limits: bool = False,
    ) -> T:
        policy = self._policy
        transfer_s = size_bytes / policy.bytes_per_s
        deadline_s = self._clock.monotonic_s() + total_s + transfer_s
        attempts = 0
        while True:
            attempts += 1
            if fenced:
                self._check_fences(what, key)
            left_s = deadline_s - self._clock.monotonic_s()
            limit_s = None if has_own_limits else min(policy.attempt_s + transfer_s, left_s)
            try:
                async with asyncio.timeout(limit_s):
                    return await ask()
            except (TimeoutError, exceptions.BaseError, FileNotFoundError) as error:
                reason = self._transient_reason(what, key, error)
            delay_s = min(policy.delay_max_s, policy.delay_first_s * 2 ** (attempts - 1))
            delay_s *= self._randomness.uniform(0.5, 1.0)
            if attempts >= policy.attempts_max or self._clock.monotonic_s() + delay_s >= deadline_s:
                raise ObjectStoreUnavailable(
                    self.url_of(key),
                    f"cannot {what} the object after {attempts} requests: {reason}; this may pass"
                    " by itself, otherwise check the object store, the way to it and its limits",
                )
            if attempts == 1:
                _log.warning(
                    "object store request failed, repeating it",
                    what=what,
                    url=self.url_of(key),
                    reason=reason,
                )
            await asyncio.sleep(delay_s)

    def _transient_reason(self, what: str, key: str, error: Exception) -> str:
        """Why the request failed, if repeating it may help; raises what it means otherwise."""
        if isinstance(error, TimeoutError):
            return "no answer in time"
        # Never the whole text: stores answer with parts of what a request was signed with.
        text = str(error)
        status_found, code_found = _STATUS.search(text), _CODE.search(text)
        status = int(status_found[1]) if status_found else None
        code = code_found[1] if code_found else ""
        if code in ("NoSuchBucket", "ContainerNotFound"):
            raise self._refused(what, key, "the bucket does not exist") from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, "No such object", self.url_of(key)) from None
        if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
            raise ObjectConflict(
                self.url_of(key), "another process has written the object before"
            ) from None
        if status is not None:
            reason = f"HTTP {status} {code}".rstrip()
            if status >= 500 or status in _TRANSIENT:
                return reason
            raise self._refused(what, key, reason) from None
        if isinstance(error, exceptions.GenericError):
            return _URL_TAIL.sub("", text.split("\n", 1)[0])[:300]
        raise self._refused(what, key, type(error).__name__) from None

    def _refused(self, what: str, key: str, reason: str) -> ObjectStoreRefused:
        return ObjectStoreRefused(
            self.url_of(key),
            f"cannot {what} the object: {reason}; check that the bucket {self._url} exists, and"
            " that the credentials of the standard environment variables or files may read, write,"
            " list and delete there",
        )

    def _check_fences(self, what: str, key: str) -> None:
        for prefix, may_write in self._fences.items():
            if f"{key}/".startswith(f"{prefix}/" if prefix else "") and not may_write():
                raise ObjectStoreFenced(
                    self.url_of(key),
                    f"did not {what} the object: the leadership of this process is over",
                )
