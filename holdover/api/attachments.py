"""Reading a file that a user attaches to a job."""

from __future__ import annotations

import os

from holdover.errors import JobGraphError
from holdover.v1.job_pb2 import AttachedFile

ATTACHMENT_BYTES_MAX = 64 << 20


def read_attachment(path: str) -> AttachedFile:
    """The file under its own name, without directories; raises JobGraphError naming the path."""
    try:
        with open(path, "rb") as file:
            content = file.read(ATTACHMENT_BYTES_MAX + 1)
    except OSError as error:
        raise JobGraphError("attach", f"cannot read {path}: {error.strerror or error}") from error
    if len(content) > ATTACHMENT_BYTES_MAX:
        raise JobGraphError(
            "attach", f"{path} is over {ATTACHMENT_BYTES_MAX} bytes: read data by a source instead"
        )
    return AttachedFile(name=os.path.basename(path), content=content)
