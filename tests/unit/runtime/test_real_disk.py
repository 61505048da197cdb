"""What the machine's disk does where a file system is not what one hopes for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdover.runtime.real_disk import LocalDisk


async def test_without_hard_links_a_new_file_still_replaces_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, target)

    monkeypatch.setattr(os, "link", refused)
    disk, path = LocalDisk(), str(tmp_path / "a")
    await disk.publish_new(path, b"first")
    with pytest.raises(FileExistsError) as raised:
        await disk.publish_new(path, b"late")
    assert raised.value.filename == path
    assert [(entry.name, entry.bytes) for entry in await disk.list_directory(str(tmp_path))] == [
        ("a", 5)
    ]


async def test_a_link_that_was_made_and_is_told_to_exist_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network file system answers a request that it was sent twice."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    disk, path = LocalDisk(), str(tmp_path / "a")
    await disk.publish_new(path, b"first")
    assert [entry.name for entry in await disk.list_directory(str(tmp_path))] == ["a"]
    with pytest.raises(FileExistsError):
        await disk.publish_new(path, b"late")
