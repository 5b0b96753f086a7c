"""``cdc adopt``: takes over a Delta table that another tool has made, without loading it again."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.errors import UsageError
from cdc.cli.common import Json, destination_and_tables, names_argument, one_line, out, print_json, tables
from cdc.cli.verify import verifying
from cdc.lake import pipeline

if TYPE_CHECKING:
    from cdc.lake.jobs.results import TableAdoption


class Tool(StrEnum):
    """The tools whose columns are known."""

    debezium = "debezium"
    dms = "dms"
    lakeflow = "lakeflow"
    other = "other"


def adopt(
    ctx: typer.Context,
    names: Annotated[list[str], names_argument("One table.", metavar="[DEST] TABLE")],
    tool: Annotated[
        Tool,
        typer.Option(
            "--from",
            help="The tool that has written the table so far, by which its own columns and forms of values are known.",
            show_default=False,
        ),
    ],
    drop: Annotated[
        list[str] | None,
        typer.Option(
            "--drop",
            metavar="COLUMN",
            help="Drop this column of the Delta table. One of the source's gets its values from there. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compare, say what would be done, and change nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Take over a Delta table that another tool has made, without loading it again.

    The table lies where this destination has it, and the other tool has stopped. Its columns are brought to the types
    that Towpath gives them; its rows are compared with the source by sums; the parts that differ are read from the
    source, and the rows that differ are written. Then the table has a position, and follows the stream like any other.
    Its older versions stay readable. Capture must be running. Call it again after an interruption: it goes on.

    Exit code 2 means that the table cannot be taken over.
    """
    config, chosen = destination_and_tables(ctx, names)
    if len(chosen) != 1:
        raise UsageError("one table is taken over at a time", remedy="Name one table, as DB.TABLE.")
    with verifying("taking over") as progress:
        result = pipeline.adopt(
            config, chosen[0], tool=tool.value, dropped=drop or (), dry_run=dry_run, progress=progress
        )
    if as_json:
        print_json({"dry_run": dry_run, **result.as_dict()})
    else:
        _show(result, dry_run=dry_run)


def _show(result: TableAdoption, *, dry_run: bool) -> None:
    from rich.table import Table

    if result.columns:
        columns = Table("column", "was", "becomes", "how", box=None, pad_edge=False)
        for column in result.columns:
            columns.add_row(one_line(column.column), column.was or "–", column.now or "–", column.action)
        tables().print(columns, markup=False)
    if result.rewritten:
        out().print("All rows are written anew, because columns are converted.", markup=False)
    if result.not_compared is not None:
        out().print(f"{result.table}: {result.not_compared}.", markup=False)
    if result.ranges is not None:
        counts = f"{result.rows:,} rows at the source; {result.differing:,} of {result.ranges:,} parts differ"
        out().print(f"{result.table}: {counts}.", markup=False)
    if dry_run:
        out().print("Nothing was changed. Leave out --dry-run to do it.", markup=False)
        return
    out().print(
        f"{result.table}: {result.read:,} rows were read from the source, and those of {result.repaired:,} keys "
        f"written; it is taken over at {result.applied_seq}, version {result.delta_version} ({result.seconds:.1f} s).",
        markup=False,
    )
