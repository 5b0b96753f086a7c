"""``cdc instance``: see and change what a running ``cdc server`` runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.base.addresses import is_loopback
from cdc.base.errors import CdcError, ConfigError, UsageError
from cdc.cli.common import Json, options, print_json, say, tables
from cdc.client.instances import ServerInstances
from cdc.config import DestinationConfig, destinations, load_destination
from cdc.config.secrets import role_token
from cdc.config.values import require_http

_TOKEN = "CDC_SERVER_TOKEN"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the server, like https://store.example:8040.",
        show_default="that of the folder's configurations, on this machine",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        metavar="FILE",
        help="Certificate of the CA (PEM) that signed the server's.",
        show_default="those that the system trusts",
    ),
]
Dest = Annotated[str, typer.Argument(metavar="DEST", help="Name of the destination.", show_default=False)]

instance = typer.Typer(
    no_args_is_help=True,
    help=f"See and change the destinations that a running `cdc server` runs. The token is ${_TOKEN}, else that of "
    "server.roles in the folder's configurations.",
)


@instance.command("list")
def show(
    ctx: typer.Context,
    dest: Annotated[
        str | None, typer.Argument(metavar="[DEST]", help="Name of a destination; else all.", show_default=False)
    ] = None,
    url: Url = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Show the instances of the server: state, capture, and what is wrong."""
    server = _server(ctx, url, ca_file, "viewer")
    _print(server.documents() if dest is None else [server.get(dest)], as_json)


@instance.command()
def start(ctx: typer.Context, dest: Dest, url: Url = None, ca_file: CaFile = None, as_json: Json = False) -> None:
    """Start an instance that is stopped, or one that has failed at once."""
    _print([_server(ctx, url, ca_file, "operator").act(dest, "start")], as_json)


@instance.command()
def stop(ctx: typer.Context, dest: Dest, url: Url = None, ca_file: CaFile = None, as_json: Json = False) -> None:
    """Stop capture and service of an instance, until it is started; a restart of the server does not start it."""
    _print([_server(ctx, url, ca_file, "operator").act(dest, "stop")], as_json)


@instance.command()
def restart(ctx: typer.Context, dest: Dest, url: Url = None, ca_file: CaFile = None, as_json: Json = False) -> None:
    """Close an instance and open it again, capture included."""
    _print([_server(ctx, url, ca_file, "operator").act(dest, "restart")], as_json)


@instance.command()
def reload(ctx: typer.Context, url: Url = None, ca_file: CaFile = None, as_json: Json = False) -> None:
    """Let the server read its configurations and tokens again at once."""
    _print(_server(ctx, url, ca_file, "operator").reload(), as_json)


@instance.command()
def logs(
    ctx: typer.Context,
    dest: Dest,
    lines: Annotated[int, typer.Option("--lines", metavar="N", min=1, max=400, help="How many lines.")] = 100,
    url: Url = None,
    ca_file: CaFile = None,
    as_json: Json = False,
) -> None:
    """Print the last lines that capture and push of an instance have written since the server was started."""
    log_lines = _server(ctx, url, ca_file, "viewer").logs(dest, lines)
    if as_json:
        print_json({"destination": dest, "lines": log_lines})
        return
    for line in log_lines:
        typer.echo(line["text"])


def _server(ctx: typer.Context, url: str | None, ca_file: Path | None, role: str) -> ServerInstances:
    """Returns the server that the options name, with the token of a role. Raises ConfigError."""
    folder = options(ctx).conf_dir
    configs: list[DestinationConfig] = []
    for name in destinations(folder):
        try:
            config = load_destination(folder, name)
        except CdcError as error:
            if role == "operator" or url is None:
                say(f"passed over: {error}")
            continue
        if config.store.kind != "server":
            configs.append(config)
    if url is None:
        url = _own_url(folder, configs)
    try:
        address = require_http(
            url,
            otherwise="is not the address of a server; write it like https://store.example:8040",
            with_secrets=f"must not hold a password; the token is ${_TOKEN}",
        )
    except ValueError as error:
        raise UsageError(f"--url {error}") from None
    if address.scheme == "http" and not is_loopback(address.hostname or ""):
        raise UsageError("--url must be https, because a token must not cross the network in clear")
    token = os.environ.get(_TOKEN)
    if token is None:
        for config in configs:
            roles = config.server.roles
            place = roles.operator if role == "operator" or roles.viewer is None else roles.viewer
            if place is not None:
                token = role_token("operator" if place is roles.operator else "viewer", place)
                break
    try:
        ca = None if ca_file is None else ca_file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", place=str(ca_file)) from None
    return ServerInstances(url, token, ca)


def _own_url(folder: Path, configs: list[DestinationConfig]) -> str:
    if not configs:
        raise ConfigError(
            "no configuration in this folder names a server",
            place=str(folder),
            remedy="Give its address with --url, or the folder of its configurations with --conf-dir.",
        )
    server = configs[0].server
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    return f"{'http' if server.certificate is None else 'https'}://{f'[{host}]' if ':' in host else host}:{server.http}"


def _print(documents: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"instances": documents})
        return
    from rich.table import Table

    pushes = any((document["push"] or {}).get("mode") == "always" for document in documents)
    table = Table(box=None, pad_edge=False)
    names = ("destination", "state", "since", "capture", "pid", "restarts", *(("push",) if pushes else ()), "problem")
    for name in names:
        table.add_column(name)
    for document in documents:
        capture, push = document["capture"] or {}, document["push"] or {}
        problem = document["error"] or document["config"]["problem"] or {}
        table.add_row(
            document["destination"],
            document["state"],
            document["since"][:19],
            capture.get("state", ""),
            str(capture.get("pid") or ""),
            str(capture.get("restarts", "")),
            *((push.get("state", ""),) if pushes else ()),
            problem.get("message") or _leadership(document["leader"], document["state"]),
        )
    tables().print(table, markup=False)


def _leadership(leader: dict[str, Any], state: str) -> str:
    """Describes who leads among several servers, and which ones wait."""
    servers = leader.get("servers")
    if servers is None:
        return (leader["holder"] or "") if state == "standby" else ""
    if not leader["leads"]:
        return f"{leader['holder'] or 'nobody'} leads"
    waiting = [server for server in servers if server != leader["holder"]]
    return f"leads in epoch {leader['epoch']}; {', '.join(waiting) if waiting else 'no other server'} waits"
