"""The commands that a task process is given, read by a thread while the task runs."""

from __future__ import annotations

import os
import queue
import signal
import threading
import traceback
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from holdover.ids import AttemptKey
from holdover.runtime.task_socket import TaskSocket
from holdover.v1.job_pb2 import Split
from holdover.v1.taskmanager_pb2 import RunTask, TaskCommand
from taskmanager.operators.cancellation import Cancellation


@dataclass(frozen=True, slots=True)
class Assignment:
    """An attempt that this process shall run.

    Attributes:
        key: the attempt.
        run: all that is needed to run it.
        cancellation: asks it to end.
        splits: answers to its wishes for splits; None when there are no more.
    """

    key: AttemptKey
    run: RunTask
    cancellation: Cancellation = field(default_factory=Cancellation)
    splits: queue.SimpleQueue[Split | None] = field(default_factory=queue.SimpleQueue)


class TaskCommands:
    """Reads the socket from a thread of its own.

    When the TaskManager is gone, or says what cannot be understood, the process ends at once:
    nobody would take what it computes.
    """

    def __init__(self, socket: TaskSocket) -> None:
        self._socket = socket
        self._assignments: queue.SimpleQueue[Assignment | None] = queue.SimpleQueue()
        self._latest: Assignment | None = None
        self._main_thread = threading.get_ident()

    def start(self) -> None:
        """Starts the thread. To be called by the thread that runs the tasks."""
        self._main_thread = threading.get_ident()
        threading.Thread(target=self._read, name="task-commands", daemon=True).start()

    def next_assignment(self) -> Assignment | None:
        """Waits for an attempt to run; None when the process shall end."""
        return self._assignments.get()

    @property
    def idle(self) -> bool:
        """Whether no attempt waits to be run."""
        return self._assignments.empty()

    def _read(self) -> None:
        try:
            while (message := self._socket.receive()) is not None:
                self._take(TaskCommand.FromString(message))
        except (DecodeError, OSError, ValueError):
            traceback.print_exc()
        os._exit(1)

    def _take(self, command: TaskCommand) -> None:
        kind = command.WhichOneof("kind")
        if kind == "run":
            key = AttemptKey.from_proto(command.run.deployment.attempt)
            self._latest = Assignment(key, command.run)
            self._assignments.put(self._latest)
        elif kind == "split" and self._latest is not None:
            has_split = command.split.HasField("split")
            self._latest.splits.put(command.split.split if has_split else None)
        elif kind == "cancel" and self._latest is not None:
            if AttemptKey.from_proto(command.cancel.attempt) == self._latest.key:
                self._latest.cancellation.request()
                # Wakes the main thread wherever it is; its handler ends the task.
                signal.pthread_kill(self._main_thread, signal.SIGINT)
        elif kind == "shutdown":
            self._assignments.put(None)
