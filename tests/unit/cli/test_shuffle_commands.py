"""`holdover shuffle-service`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdover.cli.main import app
from holdover.runtime.real import real_runtime
from holdover.v1.jobmanager_pb2 import ShuffleServiceStatus
from tests.doubles.jobmanager_double import JobManagerDouble, Jobs
from tests.unit.shuffle.test_shuffle_service_process import Services, service

pytestmark = pytest.mark.blocking_allowed("the command may block its own event loop")


@pytest.fixture
async def jobmanager() -> AsyncIterator[JobManagerDouble]:
    async with JobManagerDouble(real_runtime(), Jobs()) as double:
        yield double


async def ask(jobmanager: JobManagerDouble, *arguments: str) -> Result:
    arguments = ("shuffle-service", *arguments, "--address", jobmanager.address)
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def test_services_are_listed(jobmanager: JobManagerDouble) -> None:
    assert "no shuffle service" in (await ask(jobmanager, "list")).stdout
    jobmanager.jobs.shuffle_services = [
        ShuffleServiceStatus(resource_id="shuffle-1", address="10.0.0.7:9", draining=True)
    ]
    text = (await ask(jobmanager, "list")).stdout
    assert "shuffle-1" in text
    assert "leaving" in text


async def test_a_service_is_drained_by_its_name(
    jobmanager: JobManagerDouble, tmp_path: Path
) -> None:
    services = Services(tmp_path)
    process = await services.start("shuffle-1")
    jobmanager.jobs.shuffle_services = [
        ShuffleServiceStatus(resource_id="shuffle-1", address=process.address)
    ]
    answer = json.loads((await ask(jobmanager, "drain", "shuffle-1", "--json")).stdout)
    assert answer == {"resource_id": "shuffle-1", "executions": 0, "partition_bytes": 0}
    assert service(process).draining
    await services.stop(process)
    await services.jm.vanish()


async def test_an_unknown_service_is_refused_with_the_names_that_are_known(
    jobmanager: JobManagerDouble,
) -> None:
    jobmanager.jobs.shuffle_services = [ShuffleServiceStatus(resource_id="shuffle-1")]
    result = await ask(jobmanager, "drain", "shuffle-2")
    assert result.exit_code == 1
    assert "known: shuffle-1" in result.stderr
