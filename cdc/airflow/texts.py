"""Plans, progress and reports of jobs as text, for the logs of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdc.base.units import human_bytes, human_seconds
from cdc.lake.second_opinion.report import report_lines

if TYPE_CHECKING:
    from cdc.airflow.forms import Backfill


def text_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Returns rows as a Markdown table; numbers are aligned on the right."""
    names = list(columns) if columns is not None else list(rows[0]) if rows else []
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [
        max(len(name), *(len(line[at]) for line in cells)) if cells else len(name) for at, name in enumerate(names)
    ]
    right = [any(isinstance(row.get(name), int | float) for row in rows) for name in names]
    lines = [names, ["-" * (width - 1) + ":" if on else "-" * width for width, on in zip(widths, right, strict=True)]]
    return "\n".join(
        "| "
        + " | ".join(
            cell.rjust(width) if on else cell.ljust(width) for cell, width, on in zip(line, widths, right, strict=True)
        )
        + " |"
        for line in [*lines, *cells]
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value).replace("|", "\\|")


def progress_line(progress: Any) -> str:
    """Returns the progress of a job: of a snapshot, with rows, rate and time left, or any other's own text."""
    if not hasattr(progress, "rows_per_s"):
        return str(progress)
    left = "" if progress.left_s is None else f", about {human_seconds(progress.left_s)} left"
    return (
        f"{progress.table}: {progress.rows:,} of about {max(progress.rows, progress.estimated_rows):,} rows, "
        f"{human_bytes(progress.bytes)}, {progress.rows_per_s:,.0f} rows/s{left}"
    )


def verification(document: Mapping[str, Any]) -> str:
    """Returns the report of a verification as a table, followed by what differs."""
    rows = [
        {
            "table": table["table"],
            "state": table["state"],
            "rows": table["rows"],
            "commits": table["ledger"]["entries"],
            "gaps": len(table["ledger"]["gaps"]),
            "chunks": table["checksums"]["chunks"],
            "differences": len(table["checksums"]["differences"]),
            "verdict": table["verdict"],
        }
        for table in document["tables"]
    ]
    lines = [text_table(rows, ["table", "state", "rows", "commits", "gaps", "chunks", "differences", "verdict"])]
    history = document["history"]
    lines += [f"store: {text}" for text in (*history["faults"], *history["unknown"])]
    for table in document["tables"]:
        left_out = [f"{name} is not compared: {why}" for name, why in table["checksums"]["left_out"].items()]
        faults = (*table["ledger"]["faults"], *table["checksums"]["faults"], *table["unknown"], *left_out)
        lines += [text if text.startswith(table["table"]) else f"{table['table']}: {text}" for text in faults]
        lines += [
            f"{table['table']}: key {difference['key']}: source {difference['source']}, Delta {difference['delta']}"
            for difference in table["checksums"]["differences"]
        ]
    if document["second_opinion"] is not None:
        lines += report_lines(document["second_opinion"])
    return "\n".join(lines)


def loss_summary(plan: Mapping[str, Any]) -> str:
    """Returns a loss, and what each answer of a person would do, as Markdown."""
    gaps = [
        {
            "tables": gap["table"] or "all",
            "after transaction": str(gap["after_seq"]),
            "up to transaction": str(gap["until_seq"]),
            "reason": gap["reason"],
        }
        for gap in plan["gaps"]
    ]
    if plan["records"]:
        deed = "the Delta tables are taken as they are now, and apply goes on with their next changes"
    else:
        deed = "apply goes on where the store begins"
    approve = (
        f"**Approve**: {deed}. The gap is recorded for good: `cdc status` and every later manifest show it. Load the "
        "tables by a snapshot afterwards; until then they may differ from the source."
    )
    return "\n".join(
        [
            "Accept that these changes are lost:",
            "",
            text_table(gaps),
            "",
            *(f"- {line}" for line in plan["lines"]),
            "",
            approve,
            "",
            "**Reject**: nothing is changed, apply stays refused, and this run fails.",
        ]
    )


def plan_summary(form: Backfill, plan: Mapping[str, Any]) -> str:
    """Returns what a backfill will do, as Markdown."""
    if form.kind == "accept":
        return loss_summary(plan)
    what = {
        "snapshot": "Load these tables anew from the source",
        "replay": "Rebuild these tables from the store"
        if form.from_ is None
        else "Apply a range of changes once more to these tables, and replace none",
        "verify": "Compare these tables with the source, and change nothing",
    }[form.kind]
    details = [
        f"{word} `{value}`"
        for word, value in (("from", form.from_), ("to", form.to), ("into", form.into), ("as mode", form.mode))
        if value is not None
    ]
    lines = [f"{', '.join([what, *details])}: {', '.join(f'`{table}`' for table in form.tables)}."]
    if plan:
        counted = "rows and row events" if form.kind == "replay" else "rows"
        rows = [{**table, counted: table["rows"]} for table in plan["tables"]]
        lines += ["", text_table(rows, ["table", counted, "bytes", "seconds"])]
        size, time = human_bytes(plan["bytes"]), human_seconds(plan["seconds"])
        lines += ["", f"Together about {plan['rows']:,} {counted}, {size}, {time}."]
        lines += [f"- {table['effect'][:1].upper()}{table['effect'][1:]}." for table in plan["tables"]]
        lines += [f"- {text}" for text in plan["points"]]
    return "\n".join(lines)


def maintenance(document: Mapping[str, Any]) -> str:
    """Returns what a maintenance removed from the store."""
    done = "would be removed" if document["dry_run"] else "removed"
    removed, left = human_bytes(document["removed_bytes"]), human_bytes(document["bytes_left"])
    text = f"{len(document['removed'])} segments {done}, {removed}; {left} are left."
    snapshots = document["snapshots_removed"]
    return f"{text} Snapshots removed: {', '.join(snapshots)}." if snapshots else text
