"""Loop lag is measured and kept (P55)."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdover.runtime.loop_lag import LoopLagMonitor


async def test_a_blocked_loop_is_seen_kept_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    monitor = LoopLagMonitor(interval_s=0.01, warn_above_s=0.1)
    measuring = asyncio.create_task(monitor.run())
    await asyncio.sleep(0.03)
    time.sleep(0.2)  # noqa: ASYNC251  the fault that is to be seen
    await asyncio.sleep(0.03)
    measuring.cancel()
    assert monitor.max_lag_s > 0.15
    assert monitor.take_recent_max_lag_s() == monitor.max_lag_s
    assert monitor.take_recent_max_lag_s() == 0.0
    assert "blocked or starved" in caplog.text
