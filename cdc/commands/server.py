"""``cdc server``: hand out batches and bytes of stores on this machine to others."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.commands.common import options, say


def register(app: typer.Typer) -> None:
    app.command("server")(server)


def server(
    ctx: typer.Context,
    dest: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DEST]…",
            help="Names of destinations: their files in the folder, without .yaml. Without any, all whose store is on "
            "this machine and whose server.tokens are set.",
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
) -> None:
    """Serve stores on this machine to others until stopped, for tasks and executors that do not see its disk."""
    from cdc.config import destinations, load_destination
    from cdc.errors import ConfigError
    from cdc.server.process import serve

    folder = options(ctx).conf_dir
    configs = [load_destination(folder, name) for name in dict.fromkeys(dest or destinations(folder))]
    if not dest:
        configs = [config for config in configs if config.store.kind == "file" and config.server.tokens]
    if not configs:
        raise ConfigError(
            "no destination has server.tokens, so there is nothing to serve",
            place=str(folder),
            remedy="Add server: {tokens: {apply: {env: VARIABLE}}} to the configuration of each that is to be served.",
        )
    serve(configs, http, lambda url: say(f"Serving {', '.join(config.name for config in configs)} at {url}."))
