"""``cdc history``: every change of a row, or of a range of rows, that the store still has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any

import typer

from cdc.base.errors import CdcError, UsageError
from cdc.base.run_identity import RunIdentity
from cdc.base.targets import split_table
from cdc.base.units import iso_time_us
from cdc.cli.common import Json, SourceValues, err, load, print_json, say, tables
from cdc.client import open_batches
from cdc.config import DestinationConfig
from cdc.lake.foreign_keys.row_history import UnloggedChanges, unlogged_changes
from cdc.lake.history import (
    UNCHANGED,
    HistoryPolicies,
    Search,
    add_unlogged,
    changed_columns,
    definition_of,
    search,
)
from cdc.lake.rows.row_keys import RowKey
from cdc.lake.writers import Writers, add_writers
from cdc.meta import open_meta
from cdc.store.reader.reader import StoreReader
from cdc.watch.tail.texts import cut, printable

_QUIET_S = 1.0
"""A search that takes less time shows no progress."""
_MOST_ROWS = 10_000
"""The rows of a range of which the changes by foreign keys are looked for."""


def history(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DEST] DB.TABLE KEY",
            help="The destination, which may be left out if there is only one; the table; and the row's key: its "
            "value, a=1,b=x for several columns, or a JSON object. Bytes are hexadecimal. Write -- before a key that "
            "begins with a minus sign.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="KEY",
            help="The last key of a range that begins with KEY, itself included. The keys may differ in their last "
            "column. Texts follow each other by their bytes.",
            show_default=False,
        ),
    ] = None,
    source_values: SourceValues = False,
    as_json: Json = False,
) -> None:
    """Show every change of one row, or of a range of rows, that the store still has, oldest first: time, GTID,
    position, before and after, and what brought it into the Delta table: batch, version and run.

    Texts are compared exactly, whatever the column's collation. A change of the key is shown as a delete of the old key
    or as an insert of the new one. Changes that foreign keys made without an event are shown with the key's name, if
    the store has the events of the row and its parents. Columns are shown as the lake has them, without those that are
    dropped.
    """
    if len(words) not in (2, 3):
        raise UsageError(
            f"{len(words)} arguments are given instead of two or three", remedy="Give [DEST] DB.TABLE KEY."
        )
    table, text = words[-2:]
    config = load(ctx, words[0] if len(words) == 3 else None)

    table = config.tables.name(table)
    split_table(table)
    source = open_meta(config).read().source
    reader = StoreReader(config.store.path, None if source is None else source.base_name)
    if not reader.exists():
        raise UsageError("there is no store yet", place=str(config.store.path), remedy="Start `cdc capture` first.")
    definition, keys = definition_of(reader, table), config.table_apply(table).keys
    key = RowKey.parse(text, table, definition, keys)
    if to is not None:
        key = key.up_to(RowKey.parse(to, table, definition, keys))
    with _progress(table) as tick:
        result = search(reader, key, tick, UNCHANGED if source_values else HistoryPolicies.of(config, table))
        unlogged = UnloggedChanges()
        if len(result.keys) > _MOST_ROWS:
            unlogged.doubts.append(f"changes by foreign keys are not shown for more than {_MOST_ROWS:,} rows")
        elif result.keys:
            unlogged = unlogged_changes(config, reader, table, result.keys, lambda: tick(result))
            add_unlogged(result, key, unlogged, reader.source_file)
    doubt = _add_writers(config, table, result.changes)
    if as_json:
        print_json(result.changes)
    elif result.changes:
        _show(result.changes, [] if key.last is None else result.shown_names(key))
    _remarks(reader, result, [*unlogged.doubts, *doubt], key)


def _add_writers(config: DestinationConfig, table: str, changes: list[dict[str, Any]]) -> list[str]:
    """Adds to each change what brought it into the Delta table. Returns why that is not known, if the table or the
    manifests cannot be read: the store has the changes all the same."""
    try:
        writers, doubt = Writers.of(config, table, open_batches(config).acked_manifests()), []
    except CdcError as error:
        writers, doubt = Writers(config, table, (), -1), [f"it is not known which runs wrote the changes: {error}"]
    add_writers(changes, config, writers)
    return doubt


@contextmanager
def _progress(table: str) -> Iterator[Callable[[Search], None]]:
    """Shows the progress of a long search on a terminal's standard error."""
    console = err()
    if not console.is_terminal:
        yield lambda _: None
        return
    began = time.monotonic()
    with ExitStack() as shown:
        status: Any = None

        def tick(partial: Search) -> None:
            nonlocal status
            if time.monotonic() - began < _QUIET_S:
                return
            if status is None:
                status = shown.enter_context(console.status(""))
            status.update(
                f"{partial.transactions:,} of {partial.candidates:,} transactions, {partial.rows:,} rows of {table}, "
                f"{len(partial.changes)} changes found"
            )

        yield tick


def _remarks(reader: StoreReader, result: Search, doubts: list[str], key: RowKey) -> None:
    """Says what the store cannot tell."""
    table = key.table
    for name, rows in result.lacking.items():
        say(f"{rows:,} row events of {table} are from a time at which it had no column {name}; they were not searched")
    for doubt in doubts:
        say(doubt)
    if key.last is not None:
        if not result.changes:
            say(f"the store has no change of these rows{_beginning(reader)}")
        return
    first = result.changes[0] if result.changes else None
    if first is not None and first["op"] == "insert":
        return
    begins = _beginning(reader)
    if first is None:
        say(f"the store has no change of this row{begins}")
    else:
        say(f"the row was there before its first change here{begins}")


def _beginning(reader: StoreReader) -> str:
    """Returns the beginning of the store as the end of a sentence."""
    removed, seq = reader.removed_seq(), reader.first_seq()
    if seq is None:
        return ", which is empty"
    entries = next(reader.all_entries(seq - 1, seq), None)
    if entries is None or not len(entries):
        return ""
    why = "; older transactions were removed by retention" if removed else ""
    return f"; the store begins at {iso_time_us(int(entries['commit_time_us'][0]))}{why}"


def _show(changes: list[dict[str, Any]], keys: list[str]) -> None:
    """Prints the changes as a table. ``keys``: the columns of the key, if there are changes of several rows."""
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(
        *(Column(Text(key)) for key in keys), "time", "change", "seq", "position", "gtid", "columns", "written by"
    )
    for change in changes:
        lines = []
        for name, (before, after) in changed_columns(change).items():
            shown = {"insert": _value(after), "delete": _value(before)}.get(
                change["op"], f"{_value(before)} → {_value(after)}"
            )
            lines.append(f"{name}: {shown}")
        if "foreign_key" in change:
            lines.append(f"(by the foreign key {change['foreign_key']})")
        for word in ("moved_to", "moved_from"):
            if word in change:
                other = ", ".join(f"{name}={_value(value)}" for name, value in change[word].items())
                lines.append(f"({word.replace('_', ' ')} {other})")
        row = change["after"] or change["before"] or {}
        table.add_row(
            *(Text(_value(row.get(key))) for key in keys),
            change["commit_time"],
            change["op"],
            str(change["seq"]),
            f"{change['file']}:{change['pos']}",
            change["gtid"] or "",
            Text("\n".join(lines)),
            Text("\n".join(_written_by(change))),
        )
    tables().print(table)


def _written_by(change: dict[str, Any]) -> list[str]:
    """Returns lines like ``batch 812, version 4711``, the run, and its address; none if nothing is known."""
    places = [
        change["rebuild"] or "",
        "" if change["batch"] is None else f"batch {change['batch']}",
        "" if change["delta_version"] is None else f"version {change['delta_version']}",
    ]
    run = RunIdentity.of_document(change["run"])
    lines = [", ".join(place for place in places if place), "" if run is None else str(run), change["run_url"] or ""]
    return [printable(line) for line in lines if line]


def _value(value: Any) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return cut(printable(text))
