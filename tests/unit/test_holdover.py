"""What `import holdover` gives to a user's program."""

from __future__ import annotations

import subprocess
import sys

import pytest

import holdover


@pytest.mark.parametrize("name", holdover.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert name in dir(holdover)
    assert getattr(holdover, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Cluster'"):
        _ = holdover.Cluster


def test_importing_holdover_loads_no_heavy_library() -> None:
    program = "import holdover, sys; print(*{'grpc', 'pyarrow', 'duckdb'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == ""
