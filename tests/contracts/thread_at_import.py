"""A module that leaves a thread running, as some libraries do."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
