"""``cdc decode``: rows of a segment, a store or any binlog file, for people and other programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.commands.common import err, out, say
from cdc.errors import StorageError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE_ROWS = 100


class OutputFormat(StrEnum):
    jsonl = "jsonl"
    table = "table"


def register(app: typer.Typer) -> None:
    app.command("decode")(decode)


def decode(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Binlog files, segments, or stores (folders).")
    ],
    table: Annotated[str, typer.Option("--table", metavar="DB.TABLE", help="The table whose rows are wanted.")],
    output: Annotated[
        Path | None, typer.Option("--out", metavar="F.parquet", help="Write a Parquet file instead of lines.")
    ] = None,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help=f"JSON lines, or a table of the first {_TABLE_ROWS} rows.")
    ] = OutputFormat.jsonl,
    column: Annotated[list[str] | None, typer.Option("--column", help="Only these columns of the table.")] = None,
    before: Annotated[bool, typer.Option("--before", help="Add the old row of each change as _before.")] = False,
) -> None:
    """Print the rows of a table that binlog files hold: inserts, updates, deletes."""
    from cdc.decode import DecodeStats, read

    stats = DecodeStats()
    batches = read(*paths, table=table, images="both" if before else "after", columns=column, stats=stats)
    if output is not None:
        _write_parquet(output, batches, table)
    elif output_format is OutputFormat.table:
        _print_table(batches)
    else:
        _print_lines(batches)
    if output is not None or stats.rows == 0:
        where = f", written to {output}" if output is not None and stats.rows else ""
        say(f"{stats.rows} rows of {table} in {stats.events} row events{where}")
    for name, count in stats.null_dates.items():
        say(f"{count} zero or impossible dates in column {name} are null")


def _print_lines(batches: Iterator[pa.RecordBatch]) -> None:
    from cdc.decode.jsonl import to_json_lines

    try:
        for batch in batches:
            for start in range(0, batch.num_rows, 65536):
                sys.stdout.write(to_json_lines(batch.slice(start, 65536)))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_table(batches: Iterator[pa.RecordBatch]) -> None:
    from rich.table import Table
    from rich.text import Text

    from cdc.decode.jsonl import with_words

    shown = 0
    table: Table | None = None
    for batch in batches:
        if table is None:
            table = Table(*batch.schema.names)
        for row in with_words(batch.slice(0, _TABLE_ROWS - shown)).to_pylist():
            table.add_row(*(Text("NULL", style="dim") if v is None else Text(str(v)) for v in row.values()))
            shown += 1
        if shown == _TABLE_ROWS:
            break
    if table is not None:
        out().print(table)
    if shown == _TABLE_ROWS:
        err().print(f"the first {_TABLE_ROWS} rows; use --format jsonl or --out for all")


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch], table: str) -> None:
    """To a temporary name first, so that a file that is there is whole."""
    import pyarrow.parquet as pq

    from cdc.decode.jsonl import with_words

    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            words = with_words(batch)
            if writer is None:
                writer = pq.ParquetWriter(temporary, words.schema)
            elif words.schema != writer.schema:
                raise UsageError(
                    f"the table {table} is altered inside these files, and a Parquet file has one schema",
                    remedy="Give fewer files, or use --format jsonl.",
                )
            writer.write_batch(words)
        if writer is not None:
            writer.close()
            writer = None
            os.replace(temporary, path)
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror or error}", place=str(path)) from None
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)
