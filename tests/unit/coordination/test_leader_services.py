"""Which leader service the options name."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdover.config import HIGH_AVAILABILITY_ETCD_ENDPOINTS, Configuration
from holdover.coordination.etcd_leader import EtcdLeaderService
from holdover.coordination.file_leader import FileLeaderService
from holdover.coordination.leader_services import cluster_directory, configured_leader_service
from holdover.coordination.object_leader import ObjectLeaderService
from holdover.errors import ConfigurationError
from holdover.runtime.real import real_runtime

DOCUMENT = Path(__file__).parents[3] / "docs" / "high-availability.md"


@pytest.mark.parametrize(
    ("kind", "storage", "expected"),
    [
        ("file", "/storage", FileLeaderService),
        ("file", "s3://bucket/prefix", ObjectLeaderService),
        ("etcd", "/storage", EtcdLeaderService),
        ("etcd", "s3://bucket/prefix", EtcdLeaderService),
    ],
)
def test_type_and_storage_directory_say_who_elects(
    kind: str, storage: str, expected: type[object]
) -> None:
    configuration = Configuration.of(
        {"high-availability.type": kind, "high-availability.storageDir": storage}
    )
    assert isinstance(configured_leader_service(real_runtime(), configuration), expected)


def test_etcd_by_tls_needs_certificates_and_says_so() -> None:
    configuration = Configuration.of(
        {
            "high-availability.type": "etcd",
            "high-availability.etcd.endpoints": "http://etcd-0:2379,https://etcd-1:2379",
        }
    )
    with pytest.raises(ConfigurationError, match=r"https://etcd-1:2379.*security\.ssl\.enabled"):
        configured_leader_service(real_runtime(), configuration)


def test_the_documented_example_is_a_configuration(tmp_path: Path) -> None:
    example = DOCUMENT.read_text().split("```yaml\n")[1].split("```")[0]
    file = tmp_path / "holdover.yaml"
    file.write_text(example)
    configuration = Configuration.load(str(file))
    assert configuration.get(HIGH_AVAILABILITY_ETCD_ENDPOINTS) == (
        "etcd-0:2379",
        "etcd-1:2379",
        "etcd-2:2379",
    )
    assert cluster_directory(configuration) == "s3://bucket/holdover/reports"
