"""``cdc server``: hand out batches and bytes of stores on this machine to others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.common import options, say

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


def register(app: typer.Typer) -> None:
    app.command("server")(server)


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
    from cdc.config import destinations, load_destination
    from cdc.errors import ConfigError, UsageError
    from cdc.server.process import serve

    folder = options(ctx).conf_dir
    configs = [load_destination(folder, name) for name in dict.fromkeys(dest or destinations(folder))]
    if not dest:
        configs = [config for config in configs if config.store.kind == "file" and _is_served(config)]
    if not configs:
        raise ConfigError(
            "no destination has server.tokens, so there is nothing to serve",
            place=str(folder),
            remedy="Add server: {tokens: {apply: {env: VARIABLE}}} to the configuration of each that is to be served; "
            "for Canal's clients, server: {canal: {enabled: true}}.",
        )
    if port is not None and not any(config.server.canal.enabled for config in configs):
        raise UsageError(
            "--port is of Canal's protocol, which no destination has enabled",
            remedy="Add server: {canal: {enabled: true}} to its configuration; the port of HTTP is --http.",
        )

    def ready(url: str, canal: str | None) -> None:
        say(f"Serving {', '.join(config.name for config in configs)} at {url}.")
        if canal is not None:
            names = ", ".join(config.name for config in configs if config.server.canal.enabled)
            say(f"Serving {names} to Canal's clients at {canal}.")

    serve(configs, http, ready, canal_port=port)


def _is_served(config: DestinationConfig) -> bool:
    return bool(config.server.tokens) or config.server.canal.enabled
