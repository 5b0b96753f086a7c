"""``cdc verify``: proves that the Delta tables hold what the source holds, or says what differs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.errors import UsageError
from cdc.base.targets import split_table
from cdc.base.units import human_seconds
from cdc.cli.common import Destination, Json, SecondOpinion, err, load, out, print_json, tables
from cdc.lake import attestation, pipeline
from cdc.lake.second_opinion import ROWS
from cdc.lake.second_opinion.report import report_lines
from cdc.lake.verify.report import Difference, TableReport, VerificationReport

if TYPE_CHECKING:
    from rich.console import Console


def verify(
    ctx: typer.Context,
    dest: Destination = None,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE…", help="Tables to verify, as db.table. Leave them out for all.", show_default=False
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Number of differing rows that are looked for in each table.")
    ] = 20,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds to wait until capture has read what the source has.", metavar="S"),
    ] = 60.0,
    second_opinion: SecondOpinion = False,
    sample: Annotated[
        str | None,
        typer.Option(
            "--sample",
            metavar="ROWS[:SEED]",
            help="Rows for --second-opinion, 10000 without this option; the seed of an earlier report repeats its "
            "sample.",
            show_default=False,
        ),
    ] = None,
    attest: Annotated[
        Path | None,
        typer.Option(
            "--attest",
            metavar="FILE",
            help="Write a signed document of what was proved, which `cdc attest check` verifies later.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare the Delta tables with the source, and the store with what the source executed.

    Exit code 0: everything is proved. 2: something differs or is missing. 1: it could not be told, of some columns or
    at all.
    """
    config = load(ctx, dest)
    names = [config.tables.name(name) for name in names or ()]
    for name in names:
        split_table(name)
    if sample is not None and not second_opinion:
        raise UsageError("--sample belongs to --second-opinion", remedy="Add --second-opinion.")
    rows, seed = _sample(sample) if second_opinion else (0, None)
    if attest is not None:
        attestation.require_possible(config, attest)
    with verifying() as progress:
        report = pipeline.verify(
            config, names or None, progress, limit=limit, wait_s=wait, second_opinion=rows, seed=seed
        )
        if attest is not None:
            attestation.write(config, report, attest, progress)
    if as_json:
        print_json(report.document())
    else:
        show(report)
        if attest is not None:
            out().print(f"Signed in {attest}.", markup=False, soft_wrap=True)
    raise typer.Exit(report.exit_code)


def _sample(text: str | None) -> tuple[int, int | None]:
    """Returns rows and seed of a sample. Raises UsageError."""
    if text is None:
        return ROWS, None
    match = re.fullmatch(r"([1-9][0-9]{0,11})(?::([0-9]{1,20}))?", text)
    if match is None:
        raise UsageError(
            f"--sample {text} is neither a number of rows nor ROWS:SEED", remedy="Give for example --sample 100000."
        )
    return int(match[1]), None if match[2] is None else int(match[2])


@contextmanager
def verifying(text: str = "verifying") -> Iterator[Callable[[str], None]]:
    """Shows what is being done on standard error, if that is a terminal."""
    console = err()
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(text) as status:
        yield lambda text: status.update(text)


def show(report: VerificationReport) -> None:
    """Prints a report as a table, with what differs below it."""
    from rich.table import Column, Table

    console = tables()
    table = Table(
        Column("table", overflow="fold"),
        "rows",
        "buckets",
        "entries",
        "ledger",
        "rows compared",
        box=None,
        pad_edge=False,
    )
    for table_report in report.tables:
        table.add_row(
            table_report.table,
            "–" if table_report.rows is None else str(table_report.rows),
            str(table_report.checksums.chunks),
            str(table_report.ledger.entries),
            "proved" if table_report.ledger.ok else "FAULTS" if table_report.ledger.faults else "not known",
            table_report.verdict,
        )
    console.print(table, markup=False)
    console.print()
    evidence = {"gtid": "by GTIDs", "position": "by positions", "none": ""}[report.history.kind]
    text = {"proved": "complete", "differs": "NOT COMPLETE", "unknown": "not known"}[report.history.state]
    console.print(f"history: {text} {evidence}".rstrip(), markup=False)
    for line in [*report.history.faults, *report.history.unknown, *report.history.remarks]:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    for table_report in report.tables:
        _show_table(console, table_report)
    if report.second_opinion is not None:
        console.print()
        for line in report_lines(report.second_opinion.document()):
            console.print(line, markup=False, soft_wrap=True)
    verdict = {
        "proved": "Everything is proved.",
        "partial": "What was compared is equal, but not everything could be compared.",
        "differs": "Something differs or is missing.",
        "unknown": "Not everything could be told.",
    }[report.state]
    console.print()
    console.print(f"{verdict} ({human_seconds(report.seconds)})", markup=False)


def _show_table(console: Console, table_report: TableReport) -> None:
    checksums = table_report.checksums
    lines = [*table_report.ledger.faults, *checksums.faults, *table_report.unknown]
    lines += [
        f"column {name} is not compared: {reason}" if name != "*" else f"the rows are not compared: {reason}"
        for name, reason in [*checksums.left_out.items(), *checksums.excepted.items()]
    ]
    lines += checksums.remarks
    lines += [f"accepted as lost: the transactions after {a} up to {b}" for a, b in table_report.ledger.accepted]
    if not lines and not checksums.differences:
        return
    console.print()
    console.print(f"{table_report.table}:", markup=False)
    for line in lines:
        console.print(f"  {line}", markup=False, soft_wrap=True)
    for difference in checksums.differences:
        console.print(f"  {_difference_text(difference)}", markup=False, soft_wrap=True)
    if checksums.more:
        console.print("  … and others; --limit finds more of them", markup=False)


def _difference_text(difference: Difference) -> str:
    key = ", ".join(f"{name}={value}" for name, value in difference.key.items()) or "row"
    note = f" ({difference.note})" if difference.note else ""
    if difference.source is None:
        return f"{key}: only in the Delta table: {_row_text(difference.delta)}{note}"
    if difference.delta is None:
        return f"{key}: only at the source: {_row_text(difference.source)}{note}"
    parts = [
        f"{name}: source {_value(difference.source[name])}, delta {_value(difference.delta.get(name))}"
        for name in difference.columns
    ]
    return f"{key}: {'; '.join(parts) or _row_text(difference.source)}{note}"


def _row_text(row: dict[str, str | None] | None) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in (row or {}).items())


def _value(value: str | None) -> str:
    return "NULL" if value is None else value
