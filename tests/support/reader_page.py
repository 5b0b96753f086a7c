"""Writes docs/reference/readers.md from the kept results of the last run of ``make test-readers``."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from tests.support.reader_tables import FEATURES
from tests.support.readers import Rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "readers.md"
RESULTS = Path(__file__).parents[1] / "readers" / "results.yaml"
SPARK = "Spark"


@dataclass(frozen=True)
class Cell:
    """The result of a reader for a feature."""

    kind: Literal["read", "refused", "wrong"]
    text: str = ""
    """The error, or what is wrong."""

    @property
    def verdict(self) -> tuple[str, str]:
        """The part that must be the same in each run. An error may name features in any order."""
        return self.kind, self.text if self.kind == "wrong" else ""


@dataclass(frozen=True)
class Kept:
    """The results of a run."""

    versions: Mapping[str, str]
    """By reader."""
    cells: Mapping[str, Mapping[str, Cell]]
    """By feature and reader."""


def cell(answer: Mapping[str, Any], right: Rows) -> Cell:
    """Judges what a reader has found by the rows that are there."""
    if "error" in answer:
        return Cell("refused", _without_paths(answer["error"]))
    rows: Rows = answer["rows"]
    if rows == right:
        return Cell("read")
    if len(rows) != len(right):
        return Cell("wrong", f"shows {len(rows)} rows instead of {len(right)}")
    wrong = next((row, right_row) for row, right_row in zip(rows, right, strict=True) if row != right_row)
    if any(len(row) != len(right_row) for row, right_row in zip(rows, right, strict=True)):
        return Cell("wrong", f"shows {len(wrong[0])} columns instead of {len(wrong[1])}")
    value, truth = next((a, b) for a, b in zip(*wrong, strict=True) if a != b)
    if value is not None and '"binary"' in value:
        return Cell("wrong", "shows the value in Parquet's binary form")
    return Cell("wrong", f"shows `{value}` instead of `{truth}`")


def _without_paths(text: str) -> str:
    """Returns an error's first words, without the names of files of the run."""
    words = " ".join(word for word in text.split() if "/" not in word)
    return textwrap.shorten(words, 110, placeholder=" …").replace("|", "/").replace("`", "'")


def kept() -> Kept:
    content = yaml.safe_load(RESULTS.read_text(encoding="utf-8"))
    cells = {
        name: {reader: Cell(**cell_fields) for reader, cell_fields in readers.items()}
        for name, readers in content["cells"].items()
    }
    return Kept(content["versions"], cells)


def write(results: Kept) -> None:
    """Keeps results, and writes the page."""
    content = {
        "versions": dict(results.versions),
        "cells": {
            name: {reader: asdict(cell_result) for reader, cell_result in row.items()}
            for name, row in results.cells.items()
        },
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110), encoding="utf-8")
    PAGE.write_text(page(results), encoding="utf-8")


_HEAD = """\
# Readers of the tables

For everybody who reads the Delta tables with something else than Spark: which features of a table each reader knows,
and which of Towpath's settings give a table the feature. `cdc status --json` names the readers that each table needs.

<!-- Written by `make test-readers`. -->

"yes" means that the reader shows every row as Spark does, "refuses" that it ends with an error, and **wrong** that it
shows something else without an error: keep such a feature off a table that this reader reads.

| feature | comes with | {readers} |
|---|---|{dashes}|
"""
_TRIED = (
    "Tried with {versions}. `make test-readers` tries every cell: Spark writes a table with the feature, each reader "
    "reads all of it, and the values are compared."
)
_TAIL = """
## Not tried

This table repeats the readers' own documentation of autumn 2026. Nothing of it was run here.

| reader | by its documentation |
|---|---|
| Databricks | not looked up; its documentation says from which Databricks Runtime on it reads each feature |
| Trino | reads deletion vectors, column mapping, TIMESTAMP_NTZ, type widening, checkpoints of the second version; its page names neither VARIANT nor row tracking nor in-commit timestamps; its writes to S3 are not safe beside those of others |
| Microsoft Fabric: SQL analytics endpoint, Power BI in Direct Lake mode | read deletion vectors and column mapping by name; **not** TIMESTAMP_NTZ, which each DATETIME becomes |
| Power BI's connector for Delta in Power Query | not looked up |
"""


def page(results: Kept) -> str:
    """Returns the page for these results."""
    readers = list(results.versions)
    text = _HEAD.format(readers=" | ".join(readers), dashes="|".join("---" for _ in readers))
    notes: list[str] = []
    for name, feature in FEATURES.items():
        shown = [_shown(results.cells[name][reader], name, reader, notes) for reader in readers]
        text += f"| {feature.title} | {feature.cause} | {' | '.join(shown)} |\n"
    if notes:
        lines = (f"{number}. {note}" for number, note in enumerate(notes, 1))
        text += "\n" + "\n".join(textwrap.fill(line, 116, subsequent_indent="   ") for line in lines) + "\n"
    versions = ", ".join(f"{reader} {version}" for reader, version in results.versions.items())
    tried = textwrap.fill(_TRIED.format(versions=versions), 118)
    return f"{text}\n{tried}\n{_TAIL}"


def _shown(shown_cell: Cell, name: str, reader: str, notes: list[str]) -> str:
    if shown_cell.kind == "read":
        return "yes"
    note = (
        f"{reader}, {FEATURES[name].title}: {shown_cell.text}"
        if shown_cell.kind == "wrong"
        else f"{reader}: {shown_cell.text}"
    )
    if note not in notes:
        notes.append(note)
    return f"{'**wrong**' if shown_cell.kind == 'wrong' else 'refuses'} ({notes.index(note) + 1})"
