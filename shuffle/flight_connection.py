"""A connection to one Flight server, made anew when the credentials change."""

from __future__ import annotations

import threading
from typing import Any

from pyarrow import flight

from holdover.runtime.transport_security import CredentialFiles, Credentials


class FlightConnection:
    """Connects when it is first used, and again by itself. May be shared between threads."""

    def __init__(self, address: str, files: CredentialFiles | None = None) -> None:
        """`address` is host:port. With `files`, over TLS; each call knows what is new in them."""
        self.address = address
        self._files = files
        self._lock = threading.Lock()
        # Clients of older credentials, whose streams may still be read.
        self._old: list[Any] = []
        self._version = 0
        self._client: Any = None

    def client(self) -> Any:
        """The client for the next call."""
        with self._lock:
            if self._files is None:
                self._client = self._client or _flight_client(self.address)
                return self._client
            credentials = self._files.refresh()
            if credentials.version != self._version:
                if self._client is not None:
                    self._old.append(self._client)
                self._client = _flight_client(
                    self.address, credentials, self._files.security.expected_name
                )
                self._version = credentials.version
            return self._client

    def close(self) -> None:
        """Ends the connection."""
        for client in (*self._old, self._client):
            if client is not None:
                client.close()


def _flight_client(
    address: str, credentials: Credentials | None = None, expected_name: str = ""
) -> Any:
    # Reconnecting must not lag behind the server's return, and one reader's back-off is not to be
    # shared with others (gRPC would share channels with equal arguments).
    options: dict[str, Any] = {
        "generic_options": [
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            ("grpc.use_local_subchannel_pool", 1),
        ]
    }
    if credentials is None:
        return flight.FlightClient(f"grpc+tcp://{address}", **options)
    return flight.FlightClient(
        f"grpc+tls://{address}",
        tls_root_certs=credentials.ca,
        cert_chain=credentials.certificate_chain,
        private_key=credentials.private_key,
        override_hostname=expected_name or None,
        **options,
    )
