"""``cdc server``: hand out batches and bytes of stores on this machine to others."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.cli.common import options, say
from cdc.server.embedded import EmbeddedServer
from cdc.server.process import serve


def server(
    ctx: typer.Context,
    dest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DEST]…",
            help="Names of destinations: their files in the folder, without .yaml. Without any, all whose store is on "
            "this machine and whose server.tokens are set, or server.canal.enabled.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port of the server; 0: any that is free, which the log names.",
            show_default="server.http",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Port for Canal's clients; 0: any that is free, which the log names.",
            show_default="server.canal.port",
        ),
    ] = None,
) -> None:
    """Serve stores on this machine to others until stopped, for tasks and executors that do not see its disk."""
    global_options = options(ctx)

    def ready(server: EmbeddedServer) -> None:
        say(f"Serving {', '.join(server.live.names()) or 'nothing yet'} at {server.url}.")
        if server.canal_address is not None:
            names = ", ".join(sorted(served.name for served in server.live if served.config.server.canal.enabled))
            say(f"Serving {names or 'nothing yet'} to Canal's clients at {server.canal_address}.")

    common = ["--log-format", global_options.log_format, *(["-v"] if global_options.verbose else [])]
    serve(global_options.conf_dir, dest or (), http, ready, canal_port=port, options=common)
