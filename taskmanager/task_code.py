"""The job that a task process works for: its graph, its options, its attached modules.

A process is reused, also for another job. So it keeps what belongs to one job only, and when the
job changes, modules that were attached to the old one are forgotten: two jobs may attach different
files of the same name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import linecache
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from google.protobuf.message import DecodeError

from holdover.config import Configuration
from holdover.v1.job_pb2 import AttachedFile, JobGraph, JobVertex
from holdover.v1.taskmanager_pb2 import RunTask
from taskmanager.operators.errors import JobError


class JobCode:
    """One job as this process knows it.

    Attributes:
        graph: its graph.
        options: its options, and the TaskManager's that tasks need.
    """

    def __init__(self, graph: JobGraph, options: Configuration) -> None:
        self.graph = graph
        self.options = options
        self._vertices = {vertex.vertex_id: vertex for vertex in graph.vertices}
        self._modules = AttachedModules(graph.job_id, graph.files)

    def vertex(self, vertex_id: str) -> JobVertex:
        """The vertex; JobError when the job has none of this id."""
        vertex = self._vertices.get(vertex_id)
        if vertex is None:
            raise JobError(f"the job has no vertex {vertex_id!r}")
        return vertex

    def install(self) -> None:
        """Makes the attached files importable."""
        sys.meta_path.insert(0, self._modules)

    def uninstall(self) -> None:
        """Forgets them, and the modules that were made from them."""
        sys.meta_path.remove(self._modules)
        self._modules.forget()


class JobCodeCache:
    """The job of the last task, which is most often the job of the next one."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._code: JobCode | None = None

    def get(self, run: RunTask) -> JobCode:
        """The task's job. Raises OSError when its graph cannot be read, JobError if it is none."""
        status = os.stat(run.job_graph_path)
        options = tuple((entry.key, entry.value) for entry in run.options)
        key = (run.job_graph_path, status.st_mtime_ns, status.st_size, options)
        if self._code is None or key != self._key:
            self.clear()
            with open(run.job_graph_path, "rb") as file:
                data = file.read()
            try:
                graph = JobGraph.FromString(data)
            except DecodeError as error:
                raise JobError(f"{run.job_graph_path} is not a job graph: {error}") from error
            code = JobCode(graph, Configuration.from_entries(run.options))
            code.install()
            self._key, self._code = key, code
        return self._code

    def clear(self) -> None:
        """Forgets the job."""
        if self._code is not None:
            self._code.uninstall()
        self._key = self._code = None


class AttachedModules(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports modules from the files of a job, which are never written to disk."""

    def __init__(self, job_id: str, files: Sequence[AttachedFile]) -> None:
        self._job_id = job_id
        self._content = {
            file.name.removesuffix(".py"): file.content
            for file in files
            if file.name.endswith(".py")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """A spec for a module that is one of the files."""
        if fullname not in self._content:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=self._origin(fullname))

    def get_source(self, fullname: str) -> str:
        """The text of a file; ImportError when it is not UTF-8."""
        try:
            return self._content[fullname].decode("utf-8")
        except (KeyError, UnicodeDecodeError) as error:
            raise ImportError(
                f"{fullname}.py of the job's files: {error}", name=fullname
            ) from error

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code; its tracebacks show its lines."""
        name = module.__name__
        source = self.get_source(name)
        origin = self._origin(name)
        linecache.cache[origin] = (len(source), None, source.splitlines(keepends=True), origin)
        exec(compile(source, origin, "exec", dont_inherit=True), module.__dict__)

    def forget(self) -> None:
        """Removes the modules that were made from these files."""
        for name in [name for name in self._content if name in sys.modules]:
            if getattr(sys.modules[name], "__loader__", None) is self:
                del sys.modules[name]
            linecache.cache.pop(self._origin(name), None)

    def _origin(self, fullname: str) -> str:
        return f"<{self._job_id}>/{fullname}.py"
