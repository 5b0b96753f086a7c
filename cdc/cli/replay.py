"""``cdc replay``: builds tables again from the store, or fills a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.errors import UsageError
from cdc.base.units import human_bytes
from cdc.cli.common import Json, Keys, Where, destination_and_tables, err, names_argument, print_json, say, tables
from cdc.lake import pipeline

_POINT = "a seq, a time (2026-11-21T10:00:00Z) or a GTID set"

if TYPE_CHECKING:
    from cdc.lake.jobs.results import CatchUp


def replay(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        names_argument("", metavar="[DEST] TABLE…"),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="P", help=f"Apply the changes after P once more to the tables as they are: {_POINT}."
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="P",
            help="Build the tables as of P. In place, apply then leaves them out until a replay without --to.",
        ),
    ] = None,
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="URI", help="Build new tables below URI, and leave the present ones as they are."
        ),
    ] = None,
    mode: Annotated[
        str | None, typer.Option("--mode", metavar="M", help="With --into: the mode of the new tables.")
    ] = None,
    keys: Keys = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Build tables again from the store, without the source, or fill a range of changes again.

    The table is built beside the present one, which it then replaces in one commit. With --keys or --where, only these
    rows of the present table are replaced.
    """
    from cdc.lake.jobs.table_part import PartRequest

    part = PartRequest.of(keys, where)
    config, chosen = destination_and_tables(ctx, names or [])
    if not chosen:
        raise UsageError("no table is named", remedy="Give at least one, as DB.TABLE.")
    console = err()
    if console.is_terminal:
        with console.status("Replaying") as status:

            def show(done: CatchUp) -> None:
                status.update(f"{done.table}: {done.batches} batches, {done.row_events:,} row events")

            results = pipeline.replay(
                config, chosen, from_=from_, to=to, into=into, mode=mode, part=part, progress=show
            )
    else:
        results = pipeline.replay(config, chosen, from_=from_, to=to, into=into, mode=mode, part=part)
    if as_json:
        print_json({"tables": [result.as_dict() for result in results]})
        return
    from rich.table import Table

    table = Table("table", "rows", "bytes", "batches", "seconds", "at", box=None, pad_edge=False)
    for result in results:
        table.add_row(
            result.table,
            f"{result.rows:,}",
            human_bytes(result.bytes),
            str(result.chunks),
            f"{result.seconds:.1f}",
            result.path,
        )
    tables().print(table)
    for result in results:
        if result.differed is not None:
            say(f"{result.table}: {result.differed:,} rows of the part differed from the store, and are replaced")
