"""The arms of the runtime seam. Every suite here runs on each; a new arm joins in this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from holdover.runtime import Disk, Runtime
from holdover.runtime.real import real_runtime
from tests.doubles.power_loss_disk import PowerLossDisk


@dataclass(frozen=True)
class DiskArm:
    """A disk and an existing, empty directory on it."""

    disk: Disk
    root: str


@pytest.fixture(params=["real"])
def runtime_arm() -> Runtime:
    """A whole runtime."""
    return real_runtime()


@pytest.fixture(params=["real", "power-loss"])
async def disk_arm(request: pytest.FixtureRequest, tmp_path: Path) -> DiskArm:
    """The disk of a runtime, or a double of it."""
    if request.param == "real":
        return DiskArm(real_runtime().disk, str(tmp_path))
    disk = PowerLossDisk()
    await disk.make_directories("/disk")
    return DiskArm(disk, "/disk")
