"""A task process of its own, spoken to as its TaskManager would."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cloudpickle
import pyarrow as pa

from holdover.runtime.task_socket import TaskSocket
from holdover.v1.common_pb2 import ExecutionAttempt, FinishedExecution, PartitionLocation
from holdover.v1.job_pb2 import (
    AttachedFile,
    Distribution,
    DistributionKind,
    IntermediateDataSet,
    JobGraph,
    JobVertex,
    Operator,
    PythonFunction,
    Split,
)
from holdover.v1.taskmanager_pb2 import (
    CancelTask,
    InputGate,
    RunTask,
    SplitAnswer,
    TaskCommand,
    TaskDeployment,
    TaskEvent,
    TaskFailed,
)
from shuffle.environment import InputReader, PartitionSource

DATA_ADDRESS = "127.0.0.1:1"
ANSWER_TIMEOUT_S = 30.0
_PROGRAM = """
import socket, sys
from holdover.runtime.task_socket import TaskSocket
from taskmanager.task import main
sys.exit(main(TaskSocket(socket.socket(fileno=int(sys.argv[1]))), []))
"""


class TaskProcessHarness:
    """One process and the directories it works in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shuffle = directory / "shuffle"
        self.scratch = directory / "scratch"
        self.log = directory / "log"
        ours, theirs = socket.socketpair()
        ours.settimeout(ANSWER_TIMEOUT_S)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[3],
                env={**os.environ, "PYTHONPATH": "."},
            )
        theirs.close()
        self._socket = TaskSocket(ours)
        assert self.receive().HasField("ready")

    def close(self) -> None:
        self._socket.close()
        self.process.kill()
        self.process.wait()

    # --- the conversation

    def send(self, command: TaskCommand) -> None:
        self._socket.send(command.SerializeToString())

    def receive(self) -> TaskEvent:
        message = self._socket.receive()
        assert message is not None, self.log.read_text()
        return TaskEvent.FromString(message)

    def answer_split(self, split: Split | None) -> None:
        wanted = self.receive()
        assert wanted.HasField("split_wanted"), wanted
        self.send(TaskCommand(split=SplitAnswer(split=split)))

    def cancel(self, attempt: ExecutionAttempt) -> None:
        self.send(TaskCommand(cancel=CancelTask(attempt=attempt)))
        self.process.send_signal(signal.SIGINT)

    def start(
        self,
        graph: JobGraph,
        vertex_id: str = "v0",
        *,
        subtask: int = 0,
        attempt: int = 0,
        inputs: Sequence[InputGate] = (),
        subpartitions: Sequence[int] = (),
        record_finished: bool = False,
        shuffle_address: str = "",
    ) -> ExecutionAttempt:
        """Deploys an attempt; its output goes to the shuffle service at `shuffle_address`."""
        target = PartitionLocation(worker_id="shuffle-1", data_address=shuffle_address)
        key = ExecutionAttempt(
            job_id=graph.job_id,
            vertex_id=vertex_id,
            subtask=subtask,
            attempt=attempt,
            leader_epoch=1,
        )
        _make_staging(graph)
        path = self.directory / f"{graph.job_id}.graph"
        serialized = graph.SerializeToString()
        if not path.exists() or path.read_bytes() != serialized:
            path.write_bytes(serialized)
        run = RunTask(
            deployment=TaskDeployment(
                attempt=key,
                parallelism=2,
                inputs=inputs,
                output_subpartitions=subpartitions,
                shuffle_target=target if shuffle_address else None,
            ),
            job_graph_path=str(path),
            shuffle_directory=str(self.shuffle),
            data_address=DATA_ADDRESS,
            scratch_directory=str(self.scratch),
            record_finished=record_finished,
        )
        self.send(TaskCommand(run=run))
        return key

    def finished(self) -> FinishedExecution:
        event = self.receive()
        assert event.HasField("finished"), event
        return event.finished

    def failed(self) -> TaskFailed:
        event = self.receive()
        assert event.HasField("failed"), event
        return event.failed

    # --- what it leaves

    def left_files(self) -> list[str]:
        """All files below its directories and the sink's, relative."""
        roots = [self.shuffle, self.scratch, self.directory / "out"]
        return sorted(
            str(path.relative_to(self.directory))
            for root in roots
            for path in root.rglob("*")
            if path.is_file()
        )

    def read(self, name: str, first: int = 0, end: int = 1) -> pa.Table:
        """Some subpartitions of a local partition."""
        source = PartitionSource(name, DATA_ADDRESS)
        with InputReader(
            [source], first, end, shuffle_dir=str(self.shuffle), local_address=DATA_ADDRESS
        ) as reader:
            return pa.Table.from_batches(list(reader), reader.schema())


def _make_staging(graph: JobGraph) -> None:
    """As the JobManager does."""
    sinks = [op.sink for vertex in graph.vertices for op in vertex.operators if op.HasField("sink")]
    for sink in sinks:
        (Path(sink.path) / f".staging-{graph.job_id}").mkdir(parents=True, exist_ok=True)


def function(called: Callable[..., object]) -> Operator:
    """A Python function over batches."""
    return Operator(name="f", function=PythonFunction(pickled=cloudpickle.dumps(called)))


def output(kind: str = "BROADCAST", *keys: str, boundaries_input: int = 0) -> IntermediateDataSet:
    """A data set of a vertex."""
    distribution = Distribution(
        kind=DistributionKind.Value(f"DISTRIBUTION_KIND_{kind}"),
        keys=keys,
        boundaries_input=boundaries_input,
    )
    return IntermediateDataSet(distribution=distribution, subpartitions=1)


def vertex(
    *operators: Operator, vertex_id: str = "v0", outputs: Sequence[IntermediateDataSet] = ()
) -> JobVertex:
    """A vertex with a name for messages."""
    return JobVertex(vertex_id=vertex_id, name="step", operators=operators, outputs=outputs)


def graph(
    *vertices: JobVertex, job_id: str = "job", files: Sequence[tuple[str, str]] = ()
) -> JobGraph:
    """A job of these vertices."""
    attached = [AttachedFile(name=name, content=text.encode()) for name, text in files]
    return JobGraph(job_id=job_id, vertices=vertices, files=attached)


def gate(source: str, *subtasks: int, number: int = 0, first: int = 0, end: int = 1) -> InputGate:
    """First attempts of these subtasks, held by this worker."""
    return InputGate(
        input=number,
        source_vertex_id=source,
        first_subpartition=first,
        end_subpartition=end,
        locations=[PartitionLocation(worker_id="tm", data_address=DATA_ADDRESS)],
        subtasks=subtasks,
        attempts=[0] * len(subtasks),
        epochs=[1] * len(subtasks),
        location_indexes=[0] * len(subtasks),
    )
