"""The directory of one TaskManager. Beside what every worker has (`shuffle.owned_directory`):

scratch/    what tasks spill; deleted after each attempt
graphs/     job graphs, one file a job; fetched again after a restart
tasks.log   what user code prints
"""

from __future__ import annotations

import posixpath

from holdover.runtime import Disk, FileLock
from shuffle.owned_directory import OwnedDirectory


class WorkingDirectory(OwnedDirectory):
    """See the module."""

    owner = "TaskManager"
    resource_id_key = "taskmanager.resource-id"

    def __init__(self, disk: Disk, path: str, lock: FileLock, *, generated: bool) -> None:
        super().__init__(disk, path, lock, generated=generated)
        self.scratch = posixpath.join(path, "scratch")
        self.graphs = posixpath.join(path, "graphs")
        self.tasks_log = posixpath.join(path, "tasks.log")

    async def _empty(self) -> None:
        for directory in (self.scratch, self.graphs):
            await self._disk.remove_tree(directory, missing_ok=True)
        for directory in (self.shuffle, self.scratch, self.graphs):
            await self._disk.make_directories(directory)
