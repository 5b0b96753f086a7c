"""``cdc decode``: prints the rows of a segment, a store or any binlog file."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.base.errors import StorageError, UsageError
from cdc.binlog.sql.schemas import Schemas
from cdc.cli.common import Decrypt, SecondOpinion, err, load_keys, say, tables
from cdc.decode import DecodeOptions, DecodeStats, ValuePolicies, list_tables, read
from cdc.decode.jsonl import json_lines, to_json_lines, with_words
from cdc.disk import files
from cdc.lake.second_opinion.report import report_lines
from cdc.watch.tail.texts import printable

if TYPE_CHECKING:
    import pyarrow as pa

_TABLE_ROWS = 100
_TABLES_NAMED = 20
_BATCH_BYTES = 8 << 20
"""The size of the row events that are decoded at once: large enough for fast kernels and for good row groups."""
_QUIET_S = 1.0
"""A decoding that takes less time shows no progress."""


class OutputFormat(StrEnum):
    jsonl = "jsonl"
    table = "table"


class ZeroDates(StrEnum):
    null = "null"
    fail = "fail"


def decode(
    ctx: typer.Context,
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Binlog files, segments, or stores (folders).")
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            metavar="DB.TABLE",
            help="The table whose rows are wanted; may be left out where the files hold rows of one only.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--out", metavar="F.parquet", help="Write a Parquet file instead of lines.", show_default=False),
    ] = None,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help=f"JSON lines, or a table of the first {_TABLE_ROWS} rows.")
    ] = OutputFormat.jsonl,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Only these columns of the table.", show_default=False)
    ] = None,
    before: Annotated[bool, typer.Option("--before", help="Add the old row of each change as _before.")] = False,
    from_seq: Annotated[
        int | None, typer.Option("--from", metavar="SEQ", min=0, help="From this _seq on.", show_default=False)
    ] = None,
    to_seq: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=0, help="Up to this _seq.", show_default=False)
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema",
            metavar="FILE",
            help="A store's schemas/SEQ.json, for files that lack the names of columns (MySQL 5.6, 5.7) or MariaDB's "
            "UUID, INET and VECTOR; a store's own are found by themselves.",
            show_default=False,
        ),
    ] = None,
    zero_dates: Annotated[
        ZeroDates, typer.Option("--zero-dates", help="Treatment of zero and impossible dates.")
    ] = ZeroDates.null,
    second_opinion: SecondOpinion = False,
    decrypt: Decrypt = False,
) -> None:
    """Print the rows of a table that binlog files hold: inserts, updates, deletes."""
    if decrypt:
        load_keys(ctx)
    if output is not None:
        _check_output(output, output_format)

    name = _only_table(paths) if table is None else table
    stats = DecodeStats()
    schemas = None if schema is None else _schemas(schema, name)
    options = DecodeOptions(
        images="both" if before else "after",
        columns=column,
        after_seq=max(0, (from_seq or 0) - 1),
        upto_seq=to_seq,
        policies=ValuePolicies(zero_dates="fail" if zero_dates is ZeroDates.fail else "null"),
        target_bytes=_BATCH_BYTES,
    )
    batches = read(*paths, table=name, schemas=schemas, stats=stats, options=options)
    with _progress(name, stats, is_wanted=output is not None or not sys.stdout.isatty()) as tick:
        if output is not None:
            _write_parquet(output, batches, name, tick)
        elif output_format is OutputFormat.table:
            _print_table(batches)
        else:
            _print_lines(batches, tick)
    _sum_up(paths, name, stats, output)
    if second_opinion:
        _ask_again(paths, name, options, schemas)


def _ask_again(paths: list[Path], table: str, options: DecodeOptions, schemas: Schemas | None) -> None:
    """Decodes a sample of the rows once more, and says on standard error what was compared. Ends with exit code 2 if a
    value differs."""
    from cdc.lake.second_opinion.sample import of_files  # imports mysql-replication, which is slow to load

    result = of_files(paths, table, options, schemas)
    for line in report_lines(result.document()):
        say(line)
    if result.differences:
        raise typer.Exit(2)


def _check_output(output: Path, output_format: OutputFormat) -> None:
    if output_format is not OutputFormat.jsonl:
        raise UsageError("--out writes Parquet, and --format tells how rows are printed", remedy="Give one of the two.")
    if output.suffix != ".parquet":
        raise UsageError(
            f"--out writes Parquet, and {output} is not called so",
            remedy="Name it F.parquet; for a file of JSON lines, redirect standard output.",
        )


def _only_table(paths: list[Path]) -> str:
    tables = list_tables(*paths)
    if len(tables) == 1:
        return next(iter(tables))
    if not tables:
        raise UsageError("the files hold no row events of any table")
    raise UsageError(f"the files hold rows of {_named(tables)}", remedy="Choose one with --table DB.TABLE.")


def _named(row_events: dict[str, int]) -> str:
    """The tables with the most row events."""
    shown = [f"{table} ({count} row events)" for table, count in list(row_events.items())[:_TABLES_NAMED]]
    if len(row_events) > _TABLES_NAMED:
        shown.append(f"{len(row_events) - _TABLES_NAMED} more")
    return ", ".join(shown)


def _schemas(path: Path, table: str) -> Schemas:
    if not path.is_file():
        raise UsageError(f"--schema {path} is not a file", remedy="Give a file of a store's folder schemas.")
    schemas = Schemas.load(path)
    if table not in schemas.tables:
        names = ", ".join(sorted(schemas.tables)[:_TABLES_NAMED]) or "no table"
        raise UsageError(f"{path} does not describe {table}", remedy=f"It describes {names}.")
    return schemas


@contextmanager
def _progress(table: str, stats: DecodeStats, *, is_wanted: bool) -> Iterator[Callable[[], None]]:
    """Shows the progress of a long decoding on a terminal's standard error, unless rows are printed to the terminal."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    console = err()
    began = time.monotonic()
    with ExitStack() as shown:
        status: Any = None

        def tick() -> None:
            nonlocal status
            if time.monotonic() - began < _QUIET_S:
                return
            text = f"{stats.rows:,} rows of {table}"
            if status is None:
                status = shown.enter_context(console.status(text))
            status.update(text)

        yield tick


def _sum_up(paths: list[Path], table: str, stats: DecodeStats, output: Path | None) -> None:
    if output is not None or stats.rows == 0:
        where = "" if output is None else f", written to {output}" if stats.rows else "; nothing was written"
        say(f"{stats.rows} rows of {table} in {stats.events} row events{where}")
    if stats.events == 0:
        others = {name: count for name, count in list_tables(*paths).items() if name != table}
        if others:
            say(f"the files hold rows of {_named(others)}")
    for name, count in stats.null_dates.items():
        say(f"{count} zero or impossible dates in column {name} are null")


def _print_lines(batches: Iterator[pa.RecordBatch], tick: Callable[[], None]) -> None:
    sys.stdout.flush()
    for batch in batches:
        for piece in json_lines(batch):
            if not _written(piece):
                return
        tick()
    _written(b"")


def _written(piece: memoryview | bytes) -> bool:
    """Writes to standard output. Returns False if its reader has closed it, as ``| head`` does."""
    try:
        sys.stdout.buffer.write(piece)
        if not piece:
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror or error}", place="standard output") from None
    return True


def _print_table(batches: Iterator[pa.RecordBatch]) -> None:
    import json

    from rich.table import Table
    from rich.text import Text

    shown = 0
    table: Table | None = None
    names: list[str] = []
    for batch in batches:
        if table is None:
            names = batch.schema.names
            table = Table(*names)
        if batch.schema.names != names:
            err().print("the table is altered here; use --format jsonl for all rows")
            break
        for line in to_json_lines(batch.slice(0, _TABLE_ROWS - shown)).splitlines():
            row = json.loads(line)
            table.add_row(*(Text("NULL", style="dim") if row[n] is None else Text(_cell(row[n])) for n in names))
            shown += 1
        if shown == _TABLE_ROWS:
            break
    if table is not None:
        tables().print(table)
    if shown == _TABLE_ROWS:
        err().print(f"the first {_TABLE_ROWS} rows; use --format jsonl or --out for all")


def _cell(value: Any) -> str:
    import json

    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _write_parquet(path: Path, batches: Iterator[pa.RecordBatch], table: str, tick: Callable[[], None]) -> None:
    """Writes a Parquet file with a row group for each batch. It is written under a temporary name and then renamed, so
    that an existing file is always complete."""
    import pyarrow.parquet as pq

    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    writer: pq.ParquetWriter | None = None
    try:
        os.close(files.plain.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))  # for this user only
        for batch in batches:
            words = with_words(batch)
            if writer is None:
                writer = pq.ParquetWriter(temporary, words.schema)
            elif words.schema != writer.schema:
                raise UsageError(
                    f"the table {table} is altered inside these files, and a Parquet file has one schema",
                    remedy="Give fewer files, a part of them with --from and --to, or use --format jsonl.",
                )
            writer.write_batch(words)
            tick()
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
