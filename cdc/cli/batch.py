"""``cdc batch``: the batch protocol by hand (get, ack, rollback, list), subscribers, and accepted gaps."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from cdc.base.units import human_bytes, iso_time
from cdc.batches import Lease
from cdc.batches.lease import cli_owner, exclusive
from cdc.binlog.positions import format_seq
from cdc.cli.common import Destination, Json, load, out, print_json, tables
from cdc.client import open_batches
from cdc.lake.delta.log import table_record
from cdc.store.reader.batch_builder import join_filters
from cdc.watch.status import batch_document, gap_document

Subscriber = Annotated[str, typer.Option("--subscriber", metavar="S", help="The subscriber; `apply` fills the tables.")]
Batch = Annotated[int, typer.Option("--batch", metavar="ID", min=1, help="The batch's id.", show_default=False)]
Token = Annotated[
    str, typer.Option("--token", metavar="T", help="The token that `cdc batch get` printed.", show_default=False)
]

batch = typer.Typer(no_args_is_help=True, help="Get, ack, roll back and list batches by hand; manage subscribers.")


@batch.command()
def get(
    ctx: typer.Context,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    owner: Annotated[
        str | None, typer.Option(help="Owner of the batch.", show_default="cli:<host>:<configuration file>")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="How long the lease lasts.", show_default="batch.lease_s"),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for a batch.", show_default="batch.max_wait_s"),
    ] = None,
    ahead: Annotated[bool, typer.Option("--ahead", help="Get the next batch after the outstanding ones.")] = False,
    as_json: Json = False,
) -> None:
    """Get a batch: the owner's first outstanding one again, under a new token, else the next one."""
    config = load(ctx, dest)
    with ExitStack() as stack:
        if owner is None and subscriber == "apply":
            # `cdc apply` is the same owner: getting its batch again would invalidate its token.
            stack.enter_context(exclusive(config))
        handed_out = open_batches(config).get(
            cli_owner(config, owner), subscriber=subscriber, wait_s=wait, lease_s=lease, ahead=ahead
        )
    if as_json:
        print_json(None if handed_out is None else handed_out.as_dict())
    elif handed_out is None:
        out().print(f"Nothing to hand out: {subscriber} has got all transactions of {config.name}.", markup=False)
    else:
        _show(handed_out, config.name, subscriber)


@batch.command()
def ack(
    ctx: typer.Context,
    batch: Batch,
    token: Token,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    as_json: Json = False,
) -> None:
    """Ack a batch: its changes are done. Only the first outstanding batch can be acked."""
    open_batches(load(ctx, dest)).ack(batch, token, subscriber=subscriber)
    if as_json:
        print_json({"batch": batch, "acked": True})
    else:
        out().print(f"Batch {batch} is acked.", markup=False)


@batch.command()
def rollback(
    ctx: typer.Context,
    batch: Batch,
    token: Token,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    as_json: Json = False,
) -> None:
    """Roll back a batch and all later ones; their transactions are handed out again."""
    rolled_back = open_batches(load(ctx, dest)).rollback(batch, token, subscriber=subscriber)
    if as_json:
        print_json({"batch": batch, "rolled_back": rolled_back})
        return
    later = f", and with it {', '.join(str(b) for b in rolled_back if b != batch)}" if len(rolled_back) > 1 else ""
    out().print(f"Batch {batch} is rolled back{later}.", markup=False)


@batch.command("list")
def list_batches(
    ctx: typer.Context, dest: Destination = None, subscriber: Subscriber = "apply", as_json: Json = False
) -> None:
    """List the outstanding batches of a subscriber, in order."""
    config = load(ctx, dest)
    outstanding = open_batches(config).outstanding(subscriber)
    if as_json:
        print_json({"subscriber": subscriber, "outstanding": [batch_document(entry) for entry in outstanding]})
        return
    if not outstanding:
        out().print(f"No batch of {subscriber} is outstanding.", markup=False)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("batch", "owner", "first_seq", "last_seq", "expires"):
        table.add_column(name, overflow="fold")
    for entry in outstanding:
        table.add_row(*(str(value) for value in batch_document(entry).values()))
    tables().print(table, markup=False)


@batch.command()
def subscribe(
    ctx: typer.Context,
    subscriber: Annotated[
        str, typer.Option("--subscriber", metavar="S", help="Name of the subscriber.", show_default=False)
    ],
    dest: Destination = None,
    table_filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="REGEX",
            help="Only tables whose whole db.table matches; may be repeated.",
            show_default="all tables",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a subscriber that begins at the store's first transaction, or replace the filter of an existing one."""
    config = load(ctx, dest)
    service = open_batches(config)
    before = service.meta.read().subscriptions.get(subscriber)
    subscription = service.subscribe(subscriber, join_filters(table_filter or []))
    document = {
        "subscriber": subscriber,
        "filter": subscription.filter,
        "acked_seq": subscription.acked_seq,
        "is_new": before is None,
        "begins_after_removed": before is None and subscription.acked_seq > 0,
    }
    if as_json:
        print_json(document)
        return
    tables_text = "all tables" if subscription.filter is None else f"tables that match {subscription.filter}"
    how = f"is subscribed to {tables_text}" if before is None else f"now gets {tables_text}; its cursor stays"
    out().print(f"{subscriber} {how}.", markup=False)
    if document["begins_after_removed"]:
        out().print(
            f"Retention has removed the transactions up to {subscription.acked_seq}. The subscriber begins at the "
            "first one left; the tables that it fills need a snapshot of their own.",
            markup=False,
        )


@batch.command()
def unsubscribe(
    ctx: typer.Context,
    subscriber: Annotated[
        str, typer.Option("--subscriber", metavar="S", help="Name of the subscriber.", show_default=False)
    ],
    dest: Destination = None,
    as_json: Json = False,
) -> None:
    """Remove a subscriber with its cursor and batches, so that it no longer holds back retention."""
    config = load(ctx, dest)
    open_batches(config).unsubscribe(subscriber)
    waited_for = subscriber in config.store.retain.wait_for
    if as_json:
        print_json({"subscriber": subscriber, "unsubscribed": True, "waited_for": waited_for})
        return
    out().print(f"{subscriber} is removed.", markup=False)
    if waited_for:
        out().print(
            "Retention still waits for it and removes nothing, because store.retain.wait_for names it.",
            markup=False,
        )


@batch.command("accept-gap")
def accept_gap(
    ctx: typer.Context,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="DB.TABLE",
            help="Accept a Delta table as it is now, or that it is gone and will be created again; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Accept a gap: tables lack the changes before the store's beginning, or, with --table, changes that a Delta table
    has lost. The gap is recorded, `cdc status` shows it, and every later batch carries it."""
    config = load(ctx, dest)
    service = open_batches(config)
    if table:
        names = dict.fromkeys(config.tables.name(name) for name in table)
        gaps = service.accept_tables(subscriber, {name: table_record(config, name) for name in names})
    else:
        gaps = [service.accept_beginning(subscriber)]
    if as_json:
        print_json({"subscriber": subscriber, "gaps": [gap_document(gap) for gap in gaps]})
        return
    for gap in gaps:
        whose = "all tables" if gap.table is None else gap.table
        out().print(
            f"Accepted for {whose}: changes after {gap.after_seq} up to {gap.until_seq} may be missing.",
            markup=False,
            soft_wrap=True,
        )


def _show(lease: Lease, dest: str, subscriber: str) -> None:
    from rich.table import Column, Table

    manifest = lease.manifest
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    size = human_bytes(manifest.bytes)
    rows = {
        "batch": str(manifest.batch) + (" (with DDL)" if manifest.mixed else " (DDL)" if manifest.ddl else ""),
        "token": lease.token,
        "expires": iso_time(lease.expires),
        "seqs": f"{manifest.first_seq} … {manifest.last_seq} "
        f"({format_seq(manifest.first_seq)} … {format_seq(manifest.last_seq)})",
        "holds": f"{manifest.transactions} transactions, {manifest.row_events} row events, {size}",
        "tables": ", ".join(manifest.tables) or "none",
        "from": _position_text(manifest.positions.first),
        "to": _position_text(manifest.positions.last),
        "manifest": str(lease.manifest_path),
    }
    for key, value in rows.items():
        grid.add_row(key, value)
    console = tables()
    console.print(grid, markup=False)
    other = "" if subscriber == "apply" else f" --subscriber {subscriber}"
    command = f"cdc batch {{}} {dest}{other} --batch {manifest.batch} --token {lease.token}"
    console.print(
        f"\nAck it:        {command.format('ack')}\nRoll it back:  {command.format('rollback')}",
        markup=False,
        soft_wrap=True,
    )


def _position_text(position: Any) -> str:
    parts = [f"{position.file}:{position.pos}", position.gtid, position.time]
    return ", ".join(part for part in parts if part)
