"""The object stores that storage may be in, and where their credentials come from.

Credentials are taken from the standard environment variables of each store, from its standard
files, and from the machine's identity; never from Holdover's options, so that they cannot get into
its logs. The library knows all of these but the shared credentials file of AWS.
"""

from __future__ import annotations

import configparser
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, ObjectStore, S3Store

from holdover.runtime.errors import ObjectStoreRefused

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_CONNECT_S: Final = 3.0
# `Bucket` limits requests by their size; this one only ends what it has forgotten.
_REQUEST_S: Final = 900.0
_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}

# `memory://` is one store for all who use it in this process.
_MEMORY: Final[dict[str, MemoryStore]] = {}


def open_store(url: str) -> ObjectStore:
    """The store that a URL of scheme and bucket names. Makes no request, but reads files.

    Raises `ObjectStoreRefused` for a scheme that is not known or a setting that cannot be used.
    """
    scheme, _, bucket = url.partition("://")
    options: ClientConfig = {
        "connect_timeout": timedelta(seconds=_CONNECT_S),
        "timeout": timedelta(seconds=_REQUEST_S),
    }
    try:
        match scheme:
            case "memory":
                return _MEMORY.setdefault(bucket, MemoryStore())
            case "s3":
                config = _s3_settings()
                if _s3_endpoint().startswith("http://"):
                    options["allow_http"] = True
                return S3Store.from_url(
                    url, config=config, client_options=options, retry_config=_NO_RETRIES
                )
            case "gs":
                return GCSStore.from_url(url, client_options=options, retry_config=_NO_RETRIES)
            case "az":
                return AzureStore.from_url(url, client_options=options, retry_config=_NO_RETRIES)
    except (exceptions.BaseError, configparser.Error, ValueError, TypeError, OSError) as error:
        # The text may quote a setting, so only its kind is told.
        raise ObjectStoreRefused(
            url,
            f"cannot use the object store: {type(error).__name__}; check the environment variables"
            f" and files of {scheme}:// (for az:// the account in AZURE_STORAGE_ACCOUNT_NAME)",
        ) from None
    raise ObjectStoreRefused(url, f"unknown scheme {scheme}://; use s3, gs, az or memory")


def _s3_endpoint() -> str:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        if endpoint := os.environ.get(name):
            return endpoint
    return ""


def _s3_settings() -> S3Config:
    """What the environment does not say and the shared files of AWS do."""
    settings: S3Config = {}
    if endpoint := _s3_endpoint():
        settings["endpoint"] = endpoint
    profile = os.environ.get("AWS_PROFILE", "default")
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        name = profile if profile == "default" else f"profile {profile}"
        region = _section("AWS_CONFIG_FILE", "config", name).get("region")
        if region:
            settings["region"] = region
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        found = _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", profile)
        if "aws_access_key_id" in found and "aws_secret_access_key" in found:
            settings["access_key_id"] = found["aws_access_key_id"]
            settings["secret_access_key"] = found["aws_secret_access_key"]
            if "aws_session_token" in found:
                settings["session_token"] = found["aws_session_token"]
    return settings


def _section(variable: str, name: str, section: str) -> dict[str, str]:
    path = Path(os.environ.get(variable) or Path.home() / ".aws" / name)
    parser = configparser.RawConfigParser()
    if not path.is_file():
        return {}
    parser.read(path, encoding="utf-8")
    return dict(parser[section]) if parser.has_section(section) else {}
