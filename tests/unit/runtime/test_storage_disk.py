"""Which disk a path is on, what is loaded for it, and where credentials come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from obstore.store import S3Store

from holdover.config import HIGH_AVAILABILITY_STORAGE_DIR, Configuration
from holdover.errors import ConfigurationError
from holdover.runtime import ObjectStoreRefused
from holdover.runtime.object_stores import open_store
from holdover.runtime.real import real_runtime

LOADED = """
import asyncio, sys
import jobmanager.__main__, taskmanager.__main__
from holdover.runtime.real import real_runtime
asyncio.run(real_runtime().disk.publish(sys.argv[1], b""))
assert "obstore" not in sys.modules, "the object store library was loaded"
"""


def test_a_process_with_local_storage_does_not_load_the_object_store_library(
    tmp_path: Path,
) -> None:
    subprocess.run([sys.executable, "-c", LOADED, str(tmp_path / "file")], check=True, timeout=120)


async def test_paths_are_on_this_machine_and_urls_are_not(tmp_path: Path) -> None:
    disk = real_runtime().disk
    await disk.publish(str(tmp_path / "file"), b"here")
    await disk.publish("memory://routing/directory/file", b"there")
    assert (tmp_path / "file").read_bytes() == b"here"
    assert await disk.read("memory://routing/directory/file") == b"there"
    assert [entry.name for entry in await disk.list_directory("memory://routing")] == ["directory"]


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/a/b", "gs://bucket/a", "az://container/a", "memory://x/a"]
)
def test_storage_may_be_in_an_object_store(url: str) -> None:
    configuration = Configuration.of({"high-availability.storageDir": f"{url}/"})
    assert configuration.get(HIGH_AVAILABILITY_STORAGE_DIR) == url


@pytest.mark.parametrize(
    "url",
    [
        *("http://bucket/a", "s3://", "s3:///a", "s3://bucket//a", "s3://bucket/../a"),
        *("s3://key:secret@bucket/a", "s3://bucket/a?versionId=1", "s3://bucket:9000/a"),
    ],
)
def test_a_url_that_is_no_bucket_and_prefix_is_refused(url: str) -> None:
    with pytest.raises(
        ConfigurationError, match="s3://, gs://, az:// or memory://BUCKET/PREFIX"
    ) as told:
        Configuration.of({"high-availability.storageDir": url})
    assert "secret" not in str(told.value)


def test_credentials_and_region_come_from_the_shared_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = wrong\naws_secret_access_key = wrong\n"
        "[work]\naws_access_key_id = key-of-work\naws_secret_access_key = secret%of-work\n"
    )
    (tmp_path / "config").write_text("[profile work]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "work")
    store = open_store("s3://bucket")
    assert isinstance(store, S3Store)
    config = store.config
    assert config["access_key_id"] == "key-of-work"
    assert config["secret_access_key"] == "secret%of-work"
    assert config["region"] == "eu-north-1"


def test_a_store_whose_settings_are_wrong_says_so_without_quoting_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "not-base64-but-secret")
    with pytest.raises(ObjectStoreRefused, match="AZURE_STORAGE_ACCOUNT_NAME") as raised:
        open_store("az://container")
    assert "secret" not in str(raised.value)
