"""``cdc snapshot``: fills tables with the rows that they have at the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.units import human_bytes, human_seconds
from cdc.cli.common import Json, Keys, Where, destination_and_tables, err, names_argument, out, print_json, say, tables
from cdc.lake import pipeline
from cdc.source.snapshot.progress import ProgressCallback, SnapshotProgress

if TYPE_CHECKING:
    from rich.progress import TaskID


def snapshot(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        names_argument("Without tables: all that wait for a snapshot."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Read all columns, also of a table that waits for some of them.")
    ] = False,
    keys: Keys = None,
    where: Where = None,
    as_json: Json = False,
) -> None:
    """Fill tables with the rows that they have at the source, while capture and apply go on.

    If a table waits for the values of some columns after a schema change, only these and the key are read. With --keys
    or --where, only these rows are read, and replaced in the table as it is.

    Nothing is locked, and nothing is written to the source. Call it again after an interruption: chunks that were read
    are not read again. Capture must be running.
    """
    from cdc.lake.jobs.table_part import PartRequest

    config, chosen = destination_and_tables(ctx, names or [])
    part = PartRequest.of(keys, where)
    with _shown() as progress:
        results = pipeline.snapshot(config, chosen or None, progress=progress, whole=whole, part=part)
    if as_json:
        print_json({"tables": [result.as_dict() for result in results]})
        return
    if not results:
        out().print("No table waits for a snapshot.")
        return
    from rich.table import Table

    table = Table(
        "table", "columns", "rows", "bytes", "chunks", "changes meanwhile", "seconds", box=None, pad_edge=False
    )
    for result in results:
        table.add_row(
            result.table,
            "all" if result.columns is None else ", ".join(result.columns),
            f"{result.rows:,}",
            human_bytes(result.bytes),
            str(result.chunks),
            f"{result.changes:,}",
            f"{result.seconds:.1f}",
        )
    tables().print(table)
    for result in results:
        if result.differed is not None:
            say(f"{result.table}: {result.differed:,} rows of the part differed from the source, and are replaced")


@contextmanager
def _shown() -> Iterator[ProgressCallback | None]:
    """Yields a callback that shows the progress of each table on a terminal; None without a terminal."""
    console = err()
    if not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    bars = Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        console=console,
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def show(now: SnapshotProgress) -> None:
        total = max(now.estimated_rows, now.rows) or None
        left = "" if now.left_s is None else f", {human_seconds(now.left_s)} left"
        shown = f"{now.rows:,} rows, {human_bytes(now.bytes)}, {now.rows_per_s:,.0f} rows/s{left}"
        if now.table not in tasks:
            tasks[now.table] = bars.add_task(now.table, total=total, shown=shown)
        bars.update(tasks[now.table], completed=now.rows, total=total, shown=shown)

    with bars:
        yield show
