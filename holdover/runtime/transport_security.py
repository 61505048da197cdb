"""Mutual TLS: which files say who this process is and whom it trusts, read anew when they change.

Everybody on a cluster's connections, server or client, shows a certificate that one of the
authorities in `security.ssl.ca` has issued. Key material never leaves this module but as an
argument of the libraries that need it; no `repr` shows it.

Task processes import this module: it loads neither gRPC nor, unless it is to check certificates,
the library that understands them.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdover.config import (
    SECURITY_SSL_CA,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_ENABLED,
    SECURITY_SSL_EXPECTED_NAME,
    SECURITY_SSL_PRIVATE_KEY,
    Configuration,
)
from holdover.errors import ConfigurationError
from holdover.runtime.log import Log

#: How soon a replaced file is noticed.
LOOK_INTERVAL_S = 1.0
_FILE_BYTES_MAX = 1 << 20
_OPTIONS = (
    SECURITY_SSL_ENABLED,
    SECURITY_SSL_CERTIFICATE,
    SECURITY_SSL_PRIVATE_KEY,
    SECURITY_SSL_CA,
    SECURITY_SSL_EXPECTED_NAME,
)

_log = Log(__name__)


@dataclass(frozen=True, slots=True)
class TransportSecurity:
    """The settings of `security.ssl`: paths of PEM files, and the name that servers must have."""

    certificate: str
    private_key: str
    ca: str
    expected_name: str = ""

    @classmethod
    def configured(cls, configuration: Configuration) -> TransportSecurity | None:
        """As configured; None when connections are not secured."""
        if not configuration.get(SECURITY_SSL_ENABLED):
            return None
        return cls(
            configuration.get(SECURITY_SSL_CERTIFICATE),
            configuration.get(SECURITY_SSL_PRIVATE_KEY),
            configuration.get(SECURITY_SSL_CA),
            configuration.get(SECURITY_SSL_EXPECTED_NAME),
        )

    @classmethod
    def inherited(cls, environment: Mapping[str, str]) -> TransportSecurity | None:
        """What a process has put into the environment of its child; see `environment_of`."""
        names = [option.environment_name for option in _OPTIONS]
        own = {name: environment[name] for name in names if name in environment}
        return cls.configured(Configuration.load(env=own)) if own else None


def environment_of(configuration: Configuration) -> dict[str, str]:
    """The variables that tell a child process what is configured. They hold paths, no keys."""
    return {option.environment_name: configuration.text(option) for option in _OPTIONS}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the files at one moment; `version` grows whenever they are replaced."""

    certificate_chain: bytes = field(repr=False)
    private_key: bytes = field(repr=False)
    ca: bytes = field(repr=False)
    version: int


class CredentialFiles:
    """The current credentials of this process. Safe to be used from any thread.

    A replacement counts once all files fit together: they can be replaced one after another. What
    does not fit is told in the log, and the last that did is kept.
    """

    def __init__(self, security: TransportSecurity, *, watched: bool = True) -> None:
        """Reads the files. `watched`: checks them too, and looks for new ones every second.

        Raises ConfigurationError, naming the option and the file, when they cannot work.
        """
        self.security = security
        self._watched = watched
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._problem = ""
        self._current = self._read(version=1)
        if watched:
            threading.Thread(
                target=_watch, args=(weakref.ref(self),), name="certificates", daemon=True
            ).start()

    @property
    def current(self) -> Credentials:
        """The newest credentials that work."""
        return self._current

    def refresh(self) -> Credentials:
        """Look whether the files were replaced; the newest credentials. Touches the disk."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp == self._stamp:
                    return self._current
                self._current = self._read(version=self._current.version + 1)
            except ConfigurationError as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    _log.warning("new certificates do not work, the old are kept", problem=error)
                return self._current
            self._stamp, self._problem = stamp, ""
        _log.info("certificates replaced", version=self._current.version)
        return self._current

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        """What changes when one of the files does."""
        return tuple(_stamp(key, path) for key, path in _paths(self.security))

    def _read(self, version: int) -> Credentials:
        credentials = _contents(self.security, version)
        if self._watched:
            _check(self.security, credentials)
            _warn_of_open_key(self.security.private_key)
        return credentials


def credential_files(configuration: Configuration) -> CredentialFiles | None:
    """The files as configured, read, checked and watched; None when TLS is off.

    Raises ConfigurationError as `CredentialFiles` does.
    """
    security = TransportSecurity.configured(configuration)
    return None if security is None else CredentialFiles(security)


def problem_of(security: TransportSecurity) -> str:
    """Why these files, as they are now, cannot work; empty when they can. Touches the disk."""
    try:
        _check(security, _contents(security, version=0))
    except ConfigurationError as error:
        return str(error)
    return ""


def _check(security: TransportSecurity, credentials: Credentials) -> None:
    from holdover.runtime.certificates import check_credentials  # loads cryptography

    check_credentials(security, credentials, time.time())


def _paths(security: TransportSecurity) -> tuple[tuple[str, str], ...]:
    return (
        (SECURITY_SSL_CERTIFICATE.key, security.certificate),
        (SECURITY_SSL_PRIVATE_KEY.key, security.private_key),
        (SECURITY_SSL_CA.key, security.ca),
    )


def _contents(security: TransportSecurity, version: int) -> Credentials:
    certificate, private_key, ca = (_content(key, path) for key, path in _paths(security))
    return Credentials(certificate, private_key, ca, version)


def _stamp(key: str, path: str) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _unreadable(key, path, error) from error
    return found.st_mtime_ns, found.st_ino, found.st_size


def _content(key: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(key, path, error) from error
    if len(content) > _FILE_BYTES_MAX:
        raise ConfigurationError(f"{key}: {path} is over {_FILE_BYTES_MAX} bytes", key=key)
    return content


def _unreadable(key: str, path: str, error: OSError) -> ConfigurationError:
    reason = error.strerror or str(error)
    return ConfigurationError(
        f"{key}: cannot read {path}: {reason}; make files with `holdover certs`, or name others",
        key=key,
    )


def _warn_of_open_key(path: str) -> None:
    with contextlib.suppress(OSError):  # it was read a moment ago; this is only a courtesy
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            _log.warning(
                "others may read the private key: chmod 600 it", path=path, mode=f"{mode:04o}"
            )


def _watch(files: weakref.ref[CredentialFiles]) -> None:
    """Until nobody uses them any more."""
    while True:
        time.sleep(LOOK_INTERVAL_S)
        watched = files()
        if watched is None:
            return
        watched.refresh()
        del watched
