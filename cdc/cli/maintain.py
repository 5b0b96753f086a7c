"""``cdc maintain``: retention of the store, and compaction, clustering and VACUUM of the Delta tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cdc.base.units import human_bytes
from cdc.cli.common import Json, destination_and_tables, err, names_argument, out, print_json, tables
from cdc.lake.pipeline import maintain as run
from cdc.watch.status import alarms


def maintain(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        names_argument("Without tables: all of them."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the store would lose, and change nothing.")
    ] = False,
    store_only: Annotated[bool, typer.Option("--store-only", help="Leave the Delta tables alone.")] = False,
    vacuum: Annotated[bool, typer.Option(help="Remove files that no readable version of a table needs.")] = True,
    as_json: Json = False,
) -> None:
    """Remove what is not needed any more, and compact the Delta tables.

    Of the store: segments that no subscriber needs (store.retain), which capture removes by itself as well, and
    snapshots without changes behind them. Of the Delta tables: small files are compacted or clustered (cluster_by),
    and files are removed that no version needs which can still be read, or that read_as_of may ask for. Merges go on
    meanwhile.
    """
    config, chosen = destination_and_tables(ctx, names or [])
    document = run(
        config,
        chosen,
        dry_run=dry_run,
        store_only=store_only,
        vacuum=vacuum,
        progress=lambda maintained: err().print(str(maintained), markup=False),
    )
    if as_json:
        print_json(document)
    else:
        _show(document)


_WHY = {
    "acked": "acked, and old enough",
    "room": "acked, and the store was above retain.max_bytes",
    "disk": "acked, and the disk is nearly full",
    "unacked": "older than retain.unacked_for",
}


def _show(document: dict[str, Any]) -> None:
    from rich.table import Table

    done = "would be removed" if document["dry_run"] else "removed"
    count = len(document["removed"])
    console = out()
    if count:
        console.print(f"{count} segments {done}, {human_bytes(document['removed_bytes'])}:", markup=False)
        for segment in document["removed"]:
            console.print(
                f"  {segment['segment']}  {human_bytes(segment['bytes'])}  {_WHY[segment['why']]}",
                markup=False,
            )
    else:
        console.print("Nothing to remove.", markup=False)
    if document["snapshots_removed"]:
        shown = ", ".join(document["snapshots_removed"])
        console.print(f"Snapshots removed, whose changes retention has removed: {shown}.", markup=False)
    console.print(f"{human_bytes(document['bytes_left'])} are left.", markup=False)
    if document["cut_off"]:
        console.print(f"Cut off, because they had not acked all of it: {', '.join(document['cut_off'])}.", markup=False)
    if document["over_bytes"]:
        over = human_bytes(document["over_bytes"])
        console.print(f"That is {over} more than retain.max_bytes, but the rest is not acked.", markup=False)
    if document["unarchived"]:
        count = document["unarchived"]
        console.print(f"{count} segments stay only because they are not in the archive yet.", markup=False)
    for text in alarms(document["subscriptions"]):
        console.print(text, markup=False)
    if document["subscriptions"]:
        table = Table("subscriber", "holds back", "since", box=None, pad_edge=False)
        for subscription in document["subscriptions"]:
            held = subscription["held_back"]
            amount = f"{held['transactions']} transactions, {human_bytes(held['bytes'])}"
            table.add_row(subscription["name"], amount if held["since"] else "nothing", held["since"] or "–")
        console.print()
        tables().print(table, markup=False)
