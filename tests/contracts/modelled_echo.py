"""What `echo_process` does, as a modelled program."""

from __future__ import annotations

import asyncio

from simulator.world.task_processes import DiedBySignal, ModelledTaskSocket

ENTRY = "tests.contracts.echo_process:main"


async def main(connection: ModelledTaskSocket, argv: list[str]) -> int:
    """Obey one message after another until the worker closes the socket."""
    while (message := await connection.receive()) is not None:
        command, _, argument = message.partition(b" ")
        if command == b"echo":
            connection.send(argument)
        elif command == b"burst":
            for number in range(int(argument)):
                connection.send(b"%d" % number)
        elif command == b"argv":
            connection.send(" ".join(argv).encode())
        elif command in (b"return", b"exit"):
            return int(argument)
        elif command == b"raise":
            raise ValueError(argument.decode())
        elif command == b"die":
            raise DiedBySignal(int(argument))
        elif command == b"sleep":
            interrupted = asyncio.Event()
            connection.on_interrupt = interrupted.set
            connection.send(b"sleeping")
            await interrupted.wait()
            connection.send(b"interrupted")
        elif command == b"ignore-interrupt":
            connection.on_interrupt = lambda: None
            connection.send(b"ignoring")
            await asyncio.sleep(60)
    return 0
