"""Images and clusters of containers; everything that a test starts is removed after its module."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.containers.containers import (
    AVAILABLE,
    BUILD_TIMEOUT_S,
    LEASE_S,
    SINGLE,
    Containers,
    require_engine,
    run,
)

_BASES = {"PYTHON_IMAGE": "python:3.12-slim", "ETCD_IMAGE": "gcr.io/etcd-development/etcd:v3.5.21"}
_PULL_TIMEOUT_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here are about containers, and the first one builds the images."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker("containers")
            item.add_marker("slow")
            item.add_marker(pytest.mark.blocking_allowed("containers are driven from outside"))
            item.add_marker(pytest.mark.timeout(BUILD_TIMEOUT_S))


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Containers:
    """All images are built, under the tag `test`."""
    require_engine()
    for variable, usual in _BASES.items():
        base = os.environ.get(variable, usual)
        try:
            run("docker", "image", "inspect", base)
        except AssertionError:
            try:
                run("docker", "pull", base, timeout_s=_PULL_TIMEOUT_S)
            except AssertionError as error:
                pytest.skip(f"skipped: no Docker engine with {base} ({error})")
    built = Containers.of("holdover-images", AVAILABLE, tmp_path_factory.mktemp("images"))
    # Files of tests may run side by side: the second one finds all layers made.
    with (Path(tempfile.gettempdir()) / "holdover-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        built.compose("--profile", "client", "build", timeout_s=BUILD_TIMEOUT_S)
    return built


@pytest.fixture(scope="module")
def single(images: Containers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """docker-compose.yml, running."""
    yield from _running("holdover-single", SINGLE, tmp_path_factory)


@pytest.fixture(scope="module")
def elected(images: Containers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """docker-compose.yml with docker-compose.ha.yml, running with a short lease."""
    lease = f"{LEASE_S:g} s"
    yield from _running("holdover-ha", AVAILABLE, tmp_path_factory, LEASE_DURATION=lease)


def _running(
    project: str, files: tuple[str, ...], factory: pytest.TempPathFactory, **settings: str
) -> Iterator[Containers]:
    containers = Containers.of(project, files, factory.mktemp(project), **settings)
    containers.down("--volumes")  # what an earlier run was kept from removing
    try:
        containers.up()
        yield containers
        print(containers.logs())
    finally:
        containers.down("--volumes")
