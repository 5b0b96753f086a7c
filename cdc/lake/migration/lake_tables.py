"""The Delta tables before a migration: their states, sizes and statistics, from their logs alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cdc.lake.apply.schema.columns import columns_of
from cdc.lake.delta.files import TableFiles
from cdc.lake.delta.log import last_commits
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tracked import record_in_force
from cdc.lake.delta.vectors import has_deletion_vectors
from cdc.lake.migration.planned_lake import planned_state

if TYPE_CHECKING:
    from cdc.binlog.sql.schemas import TableSchema
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

_NULL = re.compile(r"(\(?)(`(?:[^`]|``)+`) IS NULL(?: OR \2 = 0\))?")
_OUTSIDE = re.compile(r"\((`(?:[^`]|``)+`) [<>] [-0-9.]+(?: OR \1 [<>] [-0-9.]+)?\)")
_SIDE = re.compile(r" ([<>]) (-?[0-9.]+)(?= OR |\))")
_ROWS = {
    "MERGE": ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsCopied"),
    "UPDATE": ("numUpdatedRows", "numCopiedRows"),
}
"""Metrics of the rows that a commit wrote, by its operation; of the others it is ``numOutputRows``."""
_LEAST_ROWS = 1000
"""A commit of fewer rows says more about the start of a job than about its speed."""


@dataclass(frozen=True)
class LakeTable:
    """A Delta table before a migration."""

    state: DeltaState
    rows: int | None
    """Its rows with those that are marked as deleted; None if its log does not tell."""
    bytes: int
    rows_per_s: float | None = None
    """How many rows a second its own commits wrote; None if none of the last ones tells."""
    least: Mapping[str, Any] = field(default_factory=dict)
    """The least value of each column that has statistics in all files, as Delta's log has it."""
    greatest: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, int] = field(default_factory=dict)

    def state_with(self, target: Target, schema: TableSchema) -> DeltaState:
        """Returns the state that the table has once apply has come to the source's present schema. Raises what its
        columns raise."""
        record = record_in_force(self.state)
        if record is None or (record.schema is not None and _alike(record.schema, schema)):
            return self.state
        planned = planned_state(target, schema, self.state.applied_seq)
        kept = {name: value for name, value in self.state.properties.items() if name.startswith("delta.")}
        return replace(planned, properties={**kept, **planned.properties})

    def answer(self, target: Target, condition: str) -> bool | None:
        """Whether a row fulfils a condition, in the forms of :func:`cdc.lake.apply.schema.values.doubtful`; None if the
        statistics do not tell. They count rows that the source has not any more, so that they only exclude there."""
        if self.rows == 0:
            return False
        answer = self._null(condition) if _NULL.fullmatch(condition) else self._outside(condition)
        are_all_present = target.apply.mode == "upsert" and not has_deletion_vectors(self.state)
        return answer if answer is not True or are_all_present else None

    def _null(self, condition: str) -> bool | None:
        match = _NULL.fullmatch(condition)
        assert match is not None
        name = _unquoted(match[2])
        count = self.nulls.get(name)
        if count:
            return True
        if count is None:
            return None
        if not match[1]:
            return False
        least, greatest = self.least.get(name), self.greatest.get(name)
        is_positive = least is not None and greatest is not None and (least > 0 or greatest < 0)
        return False if is_positive else None

    def _outside(self, condition: str) -> bool | None:
        match = _OUTSIDE.fullmatch(condition)
        if match is None:
            return None
        name = _unquoted(match[1])
        least, greatest = self.least.get(name), self.greatest.get(name)
        if not isinstance(least, int) or not isinstance(greatest, int):
            return None
        sides = _SIDE.findall(condition[len(match[1]) + 1 :])
        return any(least < float(limit) if sign == "<" else greatest > float(limit) for sign, limit in sides)


def lake_table(target: Target) -> LakeTable | None:
    """Reads a Delta table's log. Returns None if there is no table. Raises TargetError, RetryableError."""
    state = target.state()
    files = None if state is None else TableFiles.of(state, target.table)
    if state is None or files is None:
        return None
    content = files.table.to_pydict()
    counts = content.get("num_records", [])
    rows = None if any(count is None for count in counts) else sum(counts)
    names = [] if files.is_mapped else [column.name for column in columns_of(state)]
    return LakeTable(
        state,
        rows,
        files.size_bytes,
        _speed(last_commits(state, target.table)),
        _folded(content, "min", names, min),
        _folded(content, "max", names, max),
        _folded(content, "null_count", names, sum),
    )


def _folded(content: Mapping[str, Sequence[Any]], what: str, names: Sequence[str], fold: Any) -> dict[str, Any]:
    values = {name: content[f"{what}.{name}"] for name in names if f"{what}.{name}" in content}
    return {name: fold(column) for name, column in values.items() if column and None not in column}


def _speed(commits: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns how many rows a second commits wrote."""
    rows_written = time_ms = 0
    for commit in commits:
        metrics = commit.get("operationMetrics") or {}
        names = _ROWS.get(str(commit.get("operation")), ("numOutputRows",))
        rows = sum(int(metrics.get(name, 0)) for name in names)
        if rows >= _LEAST_ROWS and int(metrics.get("executionTimeMs", 0)) > 0:
            rows_written, time_ms = rows_written + rows, time_ms + int(metrics["executionTimeMs"])
    return 1000 * rows_written / time_ms if time_ms else None


def _alike(left: TableSchema, right: TableSchema) -> bool:
    def told(schema: TableSchema) -> str:
        columns = [(c.name, c.column_type.lower(), c.nullable, c.charset) for c in schema.columns]
        return json.dumps([columns, schema.primary_key])

    return told(left) == told(right)


def _unquoted(name: str) -> str:
    assert quote(name[1:-1].replace("``", "`")) == name
    return name[1:-1].replace("``", "`")
