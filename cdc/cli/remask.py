"""``cdc remask``: gives the values that are in the lake the column policies that the configuration says now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.cli.common import Json, destination_and_tables, err, names_argument, one_line, out, print_json, tables
from cdc.lake import pipeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc.lake.jobs.results import TableRemask

_WAYS = {
    "lake": "from the rows in the lake",
    "store": "from the store, by a replay",
    "source": "from the source, by a snapshot",
    None: "not possible",
}


def remask(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        names_argument("Without tables: all whose values do not have the policies."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say which tables would be rewritten and how, and change nothing.")
    ] = False,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum",
            help="Delete at once what has the old values and is not needed: the files of old versions, and snapshots. "
            "Readers of old versions fail.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Give the values that are in the lake the column policies that the configuration says now.

    A table is rewritten from its own rows where these tell the new values, else built again from the store, else loaded
    from the source. Apply goes on from the position that the table has. Afterwards it says which places still have the
    values that a new policy hides. Call it again after an interruption: it goes on.

    Exit code 2 means that a table cannot be rewritten.
    """
    config, chosen = destination_and_tables(ctx, names or [])
    if dry_run:
        results = pipeline.plan_remask(config, chosen)
    else:
        results = pipeline.remask(
            config,
            chosen,
            vacuum=vacuum,
            progress=lambda done: err().print(f"{done.table}: rewritten in {done.seconds:.1f} s", markup=False),
        )
    if as_json:
        print_json({"dry_run": dry_run, "tables": [result.as_dict() for result in results]})
    else:
        _show(results, dry_run=dry_run)
    if dry_run and any(result.way is None for result in results):
        raise typer.Exit(2)


def _show(results: Sequence[TableRemask], *, dry_run: bool) -> None:
    from rich.table import Table

    if not results:
        out().print("All values in the lake have the policies of the configuration.", markup=False)
        return
    columns = Table("table", "column", "was", "now", "how", box=None, pad_edge=False)
    for result in results:
        for column in result.columns:
            columns.add_row(result.table, one_line(column.column), column.was, column.now, _WAYS[result.way])
    tables().print(columns, markup=False)
    for result in results:
        for reason in result.why:
            out().print(f"{result.table}: {one_line(reason)}.", markup=False)
        if result.files_deleted is not None:
            out().print(f"{result.table}: {result.files_deleted:,} files of old versions deleted.", markup=False)
    places: dict[tuple[str, str, str], None] = {}
    for result in results:
        places |= {(remains.what, remains.place, remains.until): None for remains in result.remains}
    if places:
        out().print("These still have the old values:", markup=False)
        for what, place, until in places:
            out().print(f"  {what}, at {one_line(place)}", markup=False)
            out().print(f"    {until}", markup=False)
        out().print("Copies that Towpath does not know have them as well: clones, exports, backups.", markup=False)
    if dry_run:
        out().print("Nothing was changed. Leave out --dry-run to do it.", markup=False)
