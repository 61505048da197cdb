"""Generates the gRPC stubs of ``holdover.v1`` from ``proto/``.

Two ways in: hatchling calls `StubsBuildHook` for every wheel, sdist and editable install, and
``python hatch_build.py`` (``make proto``) does the same by hand. The stubs are build products:
git ignores them, and a stub whose ``.proto`` file is gone is removed.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTO_ROOT = "proto"
PACKAGE = Path("holdover") / "v1"


def _plugin(name: str) -> str:
    """Path of the protoc plugin `name`, looked up beside this interpreter and then on PATH."""
    search = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=search)
    if found is None:
        raise RuntimeError(f"protoc plugin {name} not found: install mypy-protobuf (see pyproject)")
    return found


def generate(root: Path) -> list[Path]:
    """Writes the stubs of every ``proto/holdover/v1/*.proto`` under `root`; returns their paths.

    Raises RuntimeError when there is nothing to compile or protoc reports an error.
    """
    import grpc_tools
    from grpc_tools import protoc

    proto_root = root / PROTO_ROOT
    sources = sorted((proto_root / PACKAGE).glob("*.proto"))
    if not sources:
        raise RuntimeError(f"no .proto file under {proto_root / PACKAGE}")
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"--plugin=protoc-gen-mypy={_plugin('protoc-gen-mypy')}",
            f"--plugin=protoc-gen-mypy_grpc={_plugin('protoc-gen-mypy_grpc')}",
            f"-I{proto_root}",
            f"-I{well_known}",
            f"--python_out={root}",
            f"--grpc_python_out={root}",
            f"--mypy_out=quiet:{root}",
            f"--mypy_grpc_out=quiet:{root}",
            *map(str, sources),
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc failed with status {status}; its messages are above")
    stubs = sorted((root / PACKAGE).glob("*_pb2*.py*"))
    current = tuple(f"{source.stem}_pb2" for source in sources)
    for stale in [stub for stub in stubs if not stub.name.startswith(current)]:
        stale.unlink()
    return [stub for stub in stubs if stub.exists()]


class StubsBuildHook(BuildHookInterface[Any]):
    """Hatchling's build hook: the stubs are fresh in everything that is built or installed."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generates the stubs before hatchling collects files; see hatchling's build hook API."""
        del version
        root = Path(self.root)
        build_data["artifacts"] += [f"/{p.relative_to(root).as_posix()}" for p in generate(root)]


if __name__ == "__main__":
    for path in generate(Path(__file__).parent):
        print(path)
