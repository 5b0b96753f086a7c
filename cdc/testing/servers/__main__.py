"""``python -m cdc.testing.servers``: fetch programs, run a server, stop a detached one, print a tool's command."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from cdc.base.errors import CdcError
from cdc.testing.servers.kinds import KINDS, PASSWORD, find_kind
from cdc.testing.servers.server import Server, client_tool, stop_detached


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with ``arguments`` (default: those of the process) and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cdc.testing.servers", description="Real servers for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="get programs into the cache")
    fetching.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(sorted(KINDS))}; none: all")
    starting = commands.add_parser("start", help="run a server with fresh data until Ctrl-C")
    starting.add_argument("kind", metavar="KIND")
    starting.add_argument("--port", type=int)
    starting.add_argument("--folder", type=Path, help="keep data and log here")
    starting.add_argument("--detach", action="store_true", help="return when it serves clients; needs --folder")
    starting.add_argument("option", nargs="*", help="options for the server, after --")
    stopping = commands.add_parser("stop", help="stop a detached server; its data stay")
    stopping.add_argument("folder", type=Path)
    tool = commands.add_parser("tool", help="print the command that runs a client tool")
    tool.add_argument("kind", metavar="KIND")
    tool.add_argument("tool", metavar="TOOL")
    options = parser.parse_args(arguments)
    try:
        if options.command == "fetch":
            for name in options.kinds or sorted(KINDS):
                print(f"{name}: {find_kind(name).root()}", flush=True)
        elif options.command == "stop":
            stop_detached(options.folder)
        elif options.command == "tool":
            print(shlex.join(client_tool(options.kind, options.tool)))
        else:
            return _start(options)
    except CdcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _start(options: argparse.Namespace) -> int:
    server = Server(
        options.kind, port=options.port, options=options.option, folder=options.folder, detach=options.detach
    )
    stop = threading.Event()
    if not options.detach:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    server.start()
    print(f"{server.url} (password {PASSWORD}); log: {server.folder / 'server.log'}", flush=True)
    if options.detach:
        return 0
    while server.alive and not stop.wait(0.5):
        pass
    ended = not server.alive
    server.stop()
    if ended:
        print(f"{options.kind} ended without being stopped", file=sys.stderr)
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main())
