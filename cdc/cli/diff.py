"""``cdc diff``: the rows of a table that differ between two transactions."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.errors import UsageError
from cdc.binlog.positions import format_seq
from cdc.cli.common import Json, err, load, out, print_json
from cdc.lake import pipeline
from cdc.watch.tail.texts import cut, printable

if TYPE_CHECKING:
    from cdc.lake.jobs.results import RowDiff, TableDiff


def diff(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DEST] DB.TABLE P1 P2",
            help="The destination, which may be left out if there is only one; the table; and two points: seqs, times "
            "(2026-11-21T10:00:00Z) or GTID sets.",
            show_default=False,
        ),
    ],
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Number of rows that are shown; 0 for the numbers alone.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show which rows of a table differ between two transactions, from Delta's versions and the store.

    Only the states as of the two points are compared; `cdc history` shows each change of a row. `cdc replay --to P1`
    takes the table back.
    """
    if len(words) not in (3, 4):
        raise UsageError(
            f"{len(words)} arguments are given instead of three or four", remedy="Give [DEST] DB.TABLE P1 P2."
        )
    table, before, after = words[-3:]
    config = load(ctx, words[0] if len(words) == 4 else None)
    console = err()
    with console.status(f"comparing {table}") if console.is_terminal else nullcontext():
        result = pipeline.diff(config, table, before, after, limit=limit)
    if as_json:
        print_json(result.as_dict())
    else:
        _show(result)


def _show(result: TableDiff) -> None:
    def say(text: str) -> None:
        out().print(text, markup=False, highlight=False, soft_wrap=True)

    say(
        f"{result.table}, from {format_seq(result.before_seq)} to {format_seq(result.after_seq)}: {result.inserted:,} "
        f"inserted, {result.updated:,} updated, {result.deleted:,} deleted"
    )
    if result.columns:
        say("updated columns: " + ", ".join(f"{name} {count:,}" for name, count in sorted(result.columns.items())))
    for names, where in ((result.only_before, "first"), (result.only_after, "second")):
        if names:
            say(f"not compared, because only the {where} point has them: {', '.join(names)}")
    for row in result.rows:
        say(_row_text(row))
    more = result.inserted + result.updated + result.deleted - len(result.rows)
    if more and result.rows:
        say(f"… and {more:,} more; --limit shows more of them")


def _row_text(row: RowDiff) -> str:
    key = ", ".join(f"{name}={_value(value)}" for name, value in row.key.items())
    if row.before is not None and row.after is not None:
        changes = (f"{name}: {_value(row.before[name])} → {_value(row.after[name])}" for name in row.before)
        return f"~ {key}  {', '.join(changes)}"
    values = row.after if row.before is None else row.before
    rest = ", ".join(f"{name}={_value(value)}" for name, value in (values or {}).items() if name not in row.key)
    return f"{'+' if row.before is None else '-'} {key}{'  ' if key and rest else ''}{rest}"


def _value(text: str | None) -> str:
    return "NULL" if text is None else cut(printable(text))
