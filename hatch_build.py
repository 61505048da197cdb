"""Generates the gRPC stubs of ``holdover.v1``, and messages of other systems, from ``proto/``.

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
#: The public contract, and what the coordination speaks with etcd.
PACKAGES = (Path("holdover") / "v1", Path("holdover") / "coordination")


def _plugin(name: str) -> str:
    """Path of the protoc plugin `name`, looked up beside this interpreter and then on PATH."""
    search = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=search)
    if found is None:
        raise RuntimeError(f"protoc plugin {name} not found: install mypy-protobuf (see pyproject)")
    return found


def generate(root: Path) -> list[Path]:
    """Writes the stubs of every ``.proto`` file of `PACKAGES` under `root`; returns their paths.

    Raises RuntimeError when there is nothing to compile or protoc reports an error.
    """
    import grpc_tools
    from grpc_tools import protoc

    proto_root = root / PROTO_ROOT
    sources = sorted(
        path for package in PACKAGES for path in (proto_root / package).glob("*.proto")
    )
    for package in PACKAGES:
        if not any(source.parent == proto_root / package for source in sources):
            raise RuntimeError(f"no .proto file under {proto_root / package}")
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
    stubs = sorted(path for package in PACKAGES for path in (root / package).glob("*_pb2*.py*"))
    current = {f"{source.parent.name}/{source.stem}_pb2" for source in sources}
    for stale in [stub for stub in stubs if _module(stub) not in current]:
        stale.unlink()
    return [stub for stub in stubs if stub.exists()]


def _module(stub: Path) -> str:
    """`v1/job_pb2` for job_pb2.py, job_pb2.pyi, job_pb2_grpc.py and job_pb2_grpc.pyi."""
    return f"{stub.parent.name}/{stub.name.partition('_pb2')[0]}_pb2"


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
