"""``cdc spark``: a warm Spark Connect server on this machine."""

from __future__ import annotations

import os
import signal
import time
from typing import Annotated

import typer

from cdc.base.errors import RetryableError
from cdc.cli.common import Destination, Json, err, load, out, print_json
from cdc.lake.runtime import connect_server
from cdc.lake.runtime.connect_server import ServerFile

Port = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port on localhost.")]
_DEFAULT_PORT = 15002
_WATCH_S = 0.5


spark = typer.Typer(
    no_args_is_help=True,
    help="Run a Spark Connect server on this machine, which stays warm between runs. Merges use it if the "
    "configuration has spark: {remote: sc://localhost:15002}.",
)


@spark.command()
def start(
    ctx: typer.Context,
    dest: Destination = None,
    port: Port = _DEFAULT_PORT,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until the server ends, and end it at SIGTERM; for systemd.")
    ] = False,
) -> None:
    """Start the server with the destination's spark.conf, Delta's jars and this Python.

    It listens on localhost, asks for a token that only this user can read, and has merged rows when this returns.
    """
    config = load(ctx, dest)
    with err().status("Spark") as shown:
        server = connect_server.start(config.spark, port, lambda what: shown.update(f"Spark: {what}"))
    out().print(f"{server.url} is ready (process {server.pid}, log {connect_server.folder_of(port) / 'server.log'}).")
    if config.spark.remote != server.url:
        out().print(f"To use it, set spark: {{remote: '{server.url}'}} in {config.file}.")
    if foreground:
        _follow(server)


def _follow(server: ServerFile) -> None:
    """Waits for the server's end. Raises RetryableError if it was not ended by a signal to this process."""
    ended = False

    def end(*_: object) -> None:
        nonlocal ended
        ended = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    while server.is_alive() and not ended:
        time.sleep(_WATCH_S)
        _reap(server.pid)
    connect_server.stop(server.port)
    if not ended:
        raise RetryableError(
            "the Spark Connect server has ended",
            place=server.url,
            remedy=f"See {connect_server.folder_of(server.port) / 'server.log'}.",
        )


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


@spark.command()
def status(port: Port = _DEFAULT_PORT, as_json: Json = False) -> None:
    """Show whether the server runs. The exit code is 1 if it does not, or if it runs another Towpath than this one."""
    server = connect_server.find(port)
    running = server is not None and server.is_alive()
    current = server is not None and running and server.is_of_this_code()
    if as_json:
        print_json(
            {
                "running": running,
                "current": current,
                "url": None if server is None else server.url,
                "pid": server.pid if server is not None and running else None,
                "since": None if server is None else server.since,
            }
        )
    elif server is None:
        out().print(f"No server was started for port {port}.")
    elif not running:
        out().print(f"{server.url} has ended; see {connect_server.folder_of(port) / 'server.log'}.")
    else:
        out().print(f"{server.url} runs since {server.since} (process {server.pid}, Spark {server.spark}).")
        if not current:
            out().print("It runs another Towpath than this one: stop and start it again.")
    if not current:
        raise typer.Exit(1)


@spark.command()
def stop(port: Port = _DEFAULT_PORT) -> None:
    """Stop the server. It writes an archive of its classes, which makes the next start faster."""
    server = connect_server.stop(port)
    out().print(f"No server runs on port {port}." if server is None else f"{server.url} has ended.")
