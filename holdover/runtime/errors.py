"""What the runtime raises beyond plain `OSError`.

OSError
|-- AddressInUse               another process has the port
|-- AddressUnavailable         the host cannot be bound
|-- StorageNotWritable         a directory the process needs cannot be written
|-- ObjectStoreError           an object store does not do what it was asked
|   |-- ObjectStoreUnavailable   it may later: throttled, failing, or out of reach
|   |-- ObjectStoreRefused       it will not, unless somebody changes something
|   |-- ObjectConflict           somebody else has changed the object before
|   `-- ObjectStoreFenced        this process may not write there any more; nothing was sent
|-- TaskProcessesUnavailable   no task process can be started
`-- TaskProcessGone            a message for a process that has ended
"""

from __future__ import annotations

import errno


class AddressInUse(OSError):
    """Another process listens on the port."""

    def __init__(self, address: str) -> None:
        super().__init__(
            errno.EADDRINUSE,
            f"cannot listen on {address}: another process has this port;"
            " stop it or choose another port",
        )
        self.address = address


class AddressUnavailable(OSError):
    """The address cannot be bound: unknown host, not of this machine, or not permitted."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(errno.EADDRNOTAVAIL, f"cannot listen on {address}: {reason}")
        self.address = address


class StorageNotWritable(OSError):
    """A directory that must be written cannot be."""

    def __init__(self, path: str, cause: OSError) -> None:
        reason = cause.strerror or str(cause)
        super().__init__(
            cause.errno or errno.EACCES,
            f"storage directory {path} is not writable: {reason};"
            " check that it exists, its owner and its file system",
        )
        self.path = path


class ObjectStoreError(OSError):
    """An object store does not do what it was asked; the text names bucket, key and reason."""

    number = errno.EIO

    def __init__(self, url: str, text: str) -> None:
        super().__init__(self.number, text, url)
        self.url = url


class ObjectStoreUnavailable(ObjectStoreError):
    """It was asked several times, and may do it later."""


class ObjectStoreRefused(ObjectStoreError):
    """Asking again is no use: no permission, no bucket, or a request it does not know."""

    number = errno.EACCES


class ObjectConflict(ObjectStoreError):
    """The object is not what the caller knows of it, so it was left as it is."""

    number = errno.EEXIST


class ObjectStoreFenced(ObjectStoreError):
    """This process may not write there any more."""

    number = errno.ESTALE


class TaskProcessesUnavailable(OSError):
    """No task process can be started; the text says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.ECHILD, f"cannot start task processes: {reason}")


class TaskProcessGone(OSError):
    """The process has ended, so the message was not delivered."""

    def __init__(self, pid: int) -> None:
        super().__init__(errno.ESRCH, f"task process {pid} is gone")
