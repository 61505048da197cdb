"""Objects of an object store with versions, as services see them.

Files of a storage directory go through `Disk`, whichever kind of directory it is. What a file
cannot do is change only if nobody else has changed it: that is what leadership needs, and what
this seam has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_URL = re.compile(r"[a-z][a-z0-9]*://")


def is_object_url(path: str) -> bool:
    """Whether a storage path is in an object store (`s3://bucket/...`) and not on this machine."""
    return _URL.match(path) is not None


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """Names one content of one object; stores use one of the two, or both."""

    e_tag: str | None
    version: str | None


@dataclass(frozen=True, slots=True)
class VersionedObject:
    """What an object held when it was read."""

    data: bytes
    version: ObjectVersion


class VersionedObjects(Protocol):
    """Objects by URL. Errors are those of `holdover.runtime.errors` that begin with Object."""

    async def read(self, url: str) -> VersionedObject | None:
        """The whole object, None where there is none."""
        ...

    async def replace(self, url: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        """Put `data` where `version` is what the object holds now, or where there is no object for
        None; return the new version.

        `data` must differ from everything the object has ever held, since versions may be made of
        content. Raises `ObjectConflict` where somebody else was faster.
        """
        ...

    def fence(self, url: str, may_write: Callable[[], bool]) -> None:
        """From now on this process changes files below `url` only while `may_write()` is true.

        It is asked before each request, repeated ones included; what it forbids raises
        `ObjectStoreFenced`. `replace` is not asked: its condition is stronger.
        """
        ...


class NoObjects:
    """For worlds without an object store."""

    async def read(self, url: str) -> VersionedObject | None:
        """Raises `RuntimeError` always."""
        raise _no_objects(url)

    async def replace(self, url: str, data: bytes, version: ObjectVersion | None) -> ObjectVersion:
        """Raises `RuntimeError` always."""
        raise _no_objects(url)

    def fence(self, url: str, may_write: Callable[[], bool]) -> None:
        """Raises `RuntimeError` always."""
        raise _no_objects(url)


def _no_objects(url: str) -> RuntimeError:
    return RuntimeError(f"cannot use {url}: this runtime has no object store")
