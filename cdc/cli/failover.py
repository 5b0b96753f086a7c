"""``cdc failover``: what capture would do with each server of the source, and the acceptance of lost transactions."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from cdc.base.errors import UsageError
from cdc.capture import accept_loss as losses
from cdc.cli.common import Destination, Json, load, out, print_json, working


def failover(
    ctx: typer.Context,
    dest: Destination = None,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Go on with the new server although it lacks transactions that were captured. The tables that they "
            "changed wait for a snapshot.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show for each server of the source whether capture could go on there, or accept what a failover has lost."""
    config = load(ctx, dest)
    if config.store.kind == "server":
        raise UsageError(
            "capture runs on another machine (store.kind: server)",
            place=str(config.file),
            remedy="Do this where capture runs, with the configuration there.",
        )

    if not accept_loss:
        with working("Asking the servers …"):
            states = losses.examine_servers(config)
        if as_json:
            print_json({"destination": config.name, "servers": [asdict(state) for state in states]})
        for state in () if as_json else states:
            out().print(f"{state.server}: {state.state}: {state.message}", markup=False, soft_wrap=True)
        return
    with working("Accepting …"):
        accepted = losses.accept_loss(config)
    if as_json:
        print_json({"destination": config.name, **asdict(accepted)})
        return
    waiting = (
        f"; these tables wait for `cdc snapshot {config.name}`: {', '.join(accepted.tables)}" if accepted.tables else ""
    )
    out().print(
        f"Accepted: {accepted.transactions} transactions are lost ({accepted.lost}). Capture goes on with "
        f"{accepted.server}{waiting}.",
        markup=False,
        soft_wrap=True,
    )
