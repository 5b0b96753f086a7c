"""``cdc batch get|ack|rollback|list|subscribe|unsubscribe``: the batch protocol by hand."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.commands.common import Destination, Json, load, out, print_json, tables
from cdc.units import human_bytes

if TYPE_CHECKING:
    from cdc.batches import Lease
    from cdc.meta import Outstanding

Subscriber = Annotated[str, typer.Option("--subscriber", metavar="S", help="Whose batches; `apply` fills the tables.")]
Batch = Annotated[int, typer.Option("--batch", metavar="ID", min=1, help="The batch's id.", show_default=False)]
Token = Annotated[
    str, typer.Option("--token", metavar="T", help="The token that `cdc batch get` printed.", show_default=False)
]

batch = typer.Typer(no_args_is_help=True, help="Get, ack, roll back and list batches by hand; subscribers.")


def register(app: typer.Typer) -> None:
    app.add_typer(batch, name="batch")


@batch.command()
def get(
    ctx: typer.Context,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    owner: Annotated[
        str | None, typer.Option(help="Who holds the batch then.", show_default="cli:<host>:<configuration file>")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.001, help="How long it is held.", show_default="batch.lease_s"),
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0, help="How long to wait for one.", show_default="batch.max_wait_s"),
    ] = None,
    ahead: Annotated[bool, typer.Option("--ahead", help="The next batch after the outstanding ones.")] = False,
    as_json: Json = False,
) -> None:
    """Hand out a batch: the owner's first outstanding one again, with a new token, else the next one."""
    from cdc.batches.lease import cli_owner, exclusive
    from cdc.batches.service import BatchService

    config = load(ctx, dest)
    with ExitStack() as stack:
        if owner is None and subscriber == "apply":
            # `cdc apply` is the same owner: handing out its batch again would kill its token.
            stack.enter_context(exclusive(config))
        found = BatchService(config).get(
            owner or cli_owner(config), subscriber=subscriber, wait_s=wait, lease_s=lease, ahead=ahead
        )
    if as_json:
        print_json(None if found is None else found.as_dict())
    elif found is None:
        out().print(
            f"Nothing to hand out: {config.name} has no transactions that {subscriber} has not got.", markup=False
        )
    else:
        _show(found, config.name, subscriber)


@batch.command()
def ack(
    ctx: typer.Context,
    batch: Batch,
    token: Token,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    as_json: Json = False,
) -> None:
    """Say that a batch is done; only the first outstanding one can be."""
    from cdc.batches.service import BatchService

    BatchService(load(ctx, dest)).ack(batch, token, subscriber=subscriber)
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
    """Give up a batch and all later ones; their transactions are handed out again."""
    from cdc.batches.service import BatchService

    gone = BatchService(load(ctx, dest)).rollback(batch, token, subscriber=subscriber)
    if as_json:
        print_json({"batch": batch, "rolled_back": gone})
        return
    later = f", and with it {', '.join(str(b) for b in gone if b != batch)}" if len(gone) > 1 else ""
    out().print(f"Batch {batch} is rolled back{later}.", markup=False)


@batch.command("list")
def list_batches(
    ctx: typer.Context, dest: Destination = None, subscriber: Subscriber = "apply", as_json: Json = False
) -> None:
    """The outstanding batches of a subscriber, in their order."""
    from cdc.batches.service import BatchService

    config = load(ctx, dest)
    found = BatchService(config).outstanding(subscriber)
    if as_json:
        print_json({"subscriber": subscriber, "outstanding": [plain(entry) for entry in found]})
        return
    if not found:
        out().print(f"No batch of {subscriber} is outstanding.", markup=False)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("batch", "owner", "first_seq", "last_seq", "expires"):
        table.add_column(name, overflow="fold")
    for entry in found:
        table.add_row(*(str(value) for value in plain(entry).values()))
    tables().print(table, markup=False)


@batch.command()
def subscribe(
    ctx: typer.Context,
    subscriber: Annotated[str, typer.Option("--subscriber", metavar="S", help="Its name.", show_default=False)],
    dest: Destination = None,
    table_filter: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="REGEX",
            help="Only tables whose db.table matches, whole; several: any of them.",
            show_default="all tables",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Add a reader that begins at the store's first transaction; for one that is there, replace its filter."""
    from cdc.batches.service import BatchService
    from cdc.store.reader.batch_builder import join_filters

    config = load(ctx, dest)
    service = BatchService(config)
    before = service.meta.read().subscriptions.get(subscriber)
    known = service.subscribe(subscriber, join_filters(table_filter or []))
    document = {
        "subscriber": subscriber,
        "filter": known.filter,
        "acked_seq": known.acked_seq,
        "is_new": before is None,
        "begins_after_removed": before is None and known.acked_seq > 0,
    }
    if as_json:
        print_json(document)
        return
    tables_text = "all tables" if known.filter is None else f"tables that match {known.filter}"
    how = f"is subscribed to {tables_text}" if before is None else f"now gets {tables_text}; its cursor stays"
    out().print(f"{subscriber} {how}.", markup=False)
    if document["begins_after_removed"]:
        out().print(
            f"Retention has removed what came up to {known.acked_seq}: it begins at the store's first transaction "
            "behind that, and what it fills needs a snapshot of its own.",
            markup=False,
        )


@batch.command()
def unsubscribe(
    ctx: typer.Context,
    subscriber: Annotated[str, typer.Option("--subscriber", metavar="S", help="Its name.", show_default=False)],
    dest: Destination = None,
    as_json: Json = False,
) -> None:
    """Remove a reader with its cursor and batches: it holds the store back no more."""
    from cdc.batches.service import BatchService

    config = load(ctx, dest)
    BatchService(config).unsubscribe(subscriber)
    waited_for = subscriber in config.store.retain.wait_for
    if as_json:
        print_json({"subscriber": subscriber, "unsubscribed": True, "waited_for": waited_for})
        return
    out().print(f"{subscriber} is removed.", markup=False)
    if waited_for:
        out().print(
            "The store still waits for it, from its first transaction on, since store.retain.wait_for names it.",
            markup=False,
        )


def plain(entry: Outstanding) -> dict[str, Any]:
    """An outstanding batch as scripts find it; tokens are only for who got them."""
    from cdc.units import iso_time

    return {
        "batch": entry.batch,
        "owner": entry.owner,
        "first_seq": entry.first_seq,
        "last_seq": entry.last_seq,
        "expires": iso_time(entry.expires),
    }


def _show(lease: Lease, dest: str, subscriber: str) -> None:
    from rich.table import Column, Table

    from cdc.positions import format_seq
    from cdc.units import iso_time

    manifest = lease.manifest
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    size = human_bytes(manifest.bytes)
    rows = {
        "batch": str(manifest.batch) + (" (DDL)" if manifest.ddl else ""),
        "token": lease.token,
        "expires": iso_time(lease.expires),
        "seqs": f"{manifest.first_seq} … {manifest.last_seq} "
        f"({format_seq(manifest.first_seq)} … {format_seq(manifest.last_seq)})",
        "holds": f"{manifest.transactions} transactions, {manifest.row_events} row events, {size}",
        "tables": ", ".join(manifest.tables) or "none",
        "from": _place(manifest.positions.first),
        "to": _place(manifest.positions.last),
        "manifest": str(lease.manifest_path),
    }
    for key, value in rows.items():
        grid.add_row(key, value)
    console = tables()
    console.print(grid, markup=False)
    other = "" if subscriber == "apply" else f" --subscriber {subscriber}"
    command = f"cdc batch {{}} {dest}{other} --batch {manifest.batch} --token {lease.token}"
    console.print(
        f"\nDone with it:  {command.format('ack')}\nGive it back:  {command.format('rollback')}",
        markup=False,
        soft_wrap=True,
    )


def _place(position: Any) -> str:
    parts = [f"{position.file}:{position.pos}", position.gtid, position.time]
    return ", ".join(part for part in parts if part)
