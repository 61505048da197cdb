"""The program that the task process tests run: it does what each message says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from holdover.runtime.task_socket import TaskSocket


def main(connection: TaskSocket, argv: list[str]) -> int:
    """Obey one message after another until the worker closes the socket."""
    while (message := connection.receive()) is not None:
        command, _, argument = message.partition(b" ")
        if command == b"echo":
            connection.send(argument)
        elif command == b"burst":
            for number in range(int(argument)):
                connection.send(b"%d" % number)
        elif command == b"argv":
            connection.send(" ".join(argv).encode())
        elif command == b"return":
            return int(argument)
        else:
            misbehave(connection, command.decode(), argument)
    return 0


def misbehave(connection: TaskSocket, command: str, argument: bytes) -> None:
    """What user code may do."""
    if command == "exit":
        sys.exit(int(argument))
    elif command == "raise":
        raise ValueError(argument.decode())
    elif command == "die":
        os.kill(os.getpid(), int(argument))
    elif command == "sleep":
        wait_for_interrupt(connection)
    elif command == "ignore-interrupt":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        connection.send(b"ignoring")
        time.sleep(600)
    elif command == "start-child":
        child = subprocess.Popen(["sleep", "600"], close_fds=False)
        connection.send(b"%d" % child.pid)
    elif command == "descriptors":
        connection.send(open_descriptors().encode())
    elif command == "parent":
        connection.send(b"%d" % os.getppid())
    elif command == "surroundings":
        text = f"{os.getcwd()} {os.environ.get('GREETING')} {os.nice(0)}"
        connection.send(text.encode())
    elif command == "close-socket":
        connection.close()
        time.sleep(600)
    elif command == "print":
        print(argument.decode())
        connection.send(b"printed")
    else:
        raise ValueError(f"unknown command {command!r}")


def wait_for_interrupt(connection: TaskSocket) -> None:
    """Say that the sleep began, and that it was interrupted."""
    try:
        connection.send(b"sleeping")
        time.sleep(600)
    except KeyboardInterrupt:
        connection.send(b"interrupted")


def open_descriptors() -> str:
    """`number=target` of each descriptor that is open here."""
    found = []
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found.append(f"{name}={os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # the listing's own descriptor
    return " ".join(found)
