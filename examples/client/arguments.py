"""What all scripts take: where the cluster is, and certificates if it wants some."""

from __future__ import annotations

import argparse
from pathlib import Path

from examples.client.leader import Leader


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser that knows what is common to all."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--address", action="append", required=True, help="host:port; repeatable")
    made.add_argument("--certificates", type=Path, help="a directory that `holdover certs` made")
    return made


def leader(arguments: argparse.Namespace) -> Leader:
    """The cluster's leader."""
    return Leader(arguments.address, arguments.certificates)
