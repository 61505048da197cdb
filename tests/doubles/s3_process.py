"""`python s3_process.py PORT`: moto's S3 server. Ends when its parent closes its standard input.

It decides on a condition and puts in two steps, which S3 does in one; so one request is answered
at a time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

_one_at_a_time = threading.Lock()
_application = DomainDispatcherApplication(create_backend_app)


def answer(environ: Any, start_response: Any) -> Iterable[bytes]:
    """One request, whole."""
    with _one_at_a_time:
        return list(_application(environ, start_response))


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run_simple("127.0.0.1", int(sys.argv[1]), answer, threaded=True)
