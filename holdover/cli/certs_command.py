"""`holdover certs DIR`: certificates for a test cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdover.cli.command_line import AsJson, errors_told, write_json

_DAYS = 30


def certs(
    directory: Annotated[Path, typer.Argument(help="Where to write; made when missing.")],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Host name or address at which a process of the cluster is reached, beside those"
            " of this machine's loopback; may be repeated.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=825, help="How long they hold.")] = _DAYS,
    as_json: AsJson = False,
) -> None:
    """Make an authority, a certificate for a test cluster's processes and one for its clients.

    Nothing that exists is overwritten. Keep ca-key.pem away from the cluster: who has it can make
    certificates.
    """
    from holdover.cli.certificate_authority import CLIENT, make_certificates, security_options

    with errors_told():
        written = make_certificates(directory, hosts or (), days)
    process, client = security_options(directory), security_options(directory, CLIENT)
    if as_json:
        files = [str(path) for path in written]
        write_json({"files": files, "process": process, "client": client})
        return
    for path in written:
        typer.echo(path)
    typer.echo("\nOptions of JobManagers and TaskManagers, for a configuration file:")
    typer.echo("".join(f"{key}: {value}\n" for key, value in process.items()))
    typer.echo("Options of clients:")
    typer.echo("".join(f"{key}: {value}\n" for key, value in client.items()), nl=False)
