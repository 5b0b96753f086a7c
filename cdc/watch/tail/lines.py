"""Makes the lines that ``cdc tail`` prints: JSON, or a line for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.entry import Entries
from cdc.binlog.positions import FILE_SHIFT, MAX_OFFSET, split_seq
from cdc.decode.jsonl import OPERATIONS, line_arrays, plain_texts
from cdc.decode.layout import BEFORE, METADATA_FIELDS
from cdc.decode.transactions import gtid_strings
from cdc.watch.tail.changes import DdlLine, Rows
from cdc.watch.tail.texts import cut, printable, value_texts

Longs = npt.NDArray[np.int64]

_LONGEST_STATEMENT = 200
_INSERT, _DELETE = OPERATIONS.index("insert"), OPERATIONS.index("delete")
_COLOURS = {"insert": "32", "update": "33", "delete": "31", "ddl": "35", "dim": "2", "bold": "1"}


class JsonLines:
    """A JSON object for each change, with the keys of ``cdc history --json``, and the table."""

    def __init__(self, source_file: Callable[[int], str]) -> None:
        """``source_file`` returns the name of the source's file of a seq."""
        self._source_file = source_file

    def of_rows(self, rows: Rows) -> Iterator[pa.LargeStringArray]:
        """Yields the lines of rows, in arrays of bounded size."""
        batch, count = rows.batch, len(rows.batch)
        op, seqs = batch.column(0), batch.column(1).to_numpy()
        columns = [batch.column(name) for name in rows.columns]
        fields = [batch.schema.field(name) for name in rows.columns]
        after = _struct(columns, fields, pc.equal(op, _DELETE), count)
        values = {
            "table": pa.repeat(pa.scalar(rows.table), count),
            "seq": batch.column(1),
            "row": batch.column(2),
            "op": pa.array(OPERATIONS, pa.string()).take(op),
            "commit_time": batch.column(3),
            "gtid": batch.column(4),
            "file": _files(seqs, self._source_file),
            "pos": pa.array(seqs & MAX_OFFSET),
            "before": batch.column(BEFORE),
            "after": after,
        }
        yield from line_arrays(pa.RecordBatch.from_arrays(list(values.values()), names=list(values)))

    def of_statement(self, statement: DdlLine, entry: np.void) -> str:
        """Returns the line of a DDL statement."""
        seq = int(entry["seq"])
        line: dict[str, Any] = {
            "table": statement.tables[0] if statement.tables else None,
            "seq": seq,
            "row": 0,
            "op": "ddl",
            "commit_time": _moment(entry),
            "gtid": gtid_strings(np.array([entry]))[0].as_py(),
            "file": self._source_file(seq),
            "pos": split_seq(seq).offset,
            "before": None,
            "after": None,
            "tables": list(statement.tables),
            "sql": statement.sql,
        }
        return json.dumps(line, ensure_ascii=False) + "\n"

    def heads(self, entries: Entries) -> pa.StringArray | None:
        """JSON has no lines for transactions: the changes of one have the same seq."""
        return None


class ReadableLines:
    """A line for each change, and one before each transaction."""

    def __init__(self, source_file: Callable[[int], str], *, colours: bool) -> None:
        self._source_file = source_file
        self._colours = colours

    def _in(self, colour: str, text: str) -> str:
        return f"\033[{_COLOURS[colour]}m{text}\033[0m" if self._colours else text

    def of_rows(self, rows: Rows) -> Iterator[pa.LargeStringArray]:
        """Yields the lines of rows, in arrays of bounded size."""
        batch = rows.batch
        op = batch.column(0)
        is_insert, is_delete = pc.equal(op, _INSERT), pc.equal(op, _DELETE)
        is_update = pc.invert(pc.or_(is_insert, is_delete))
        old_rows = batch.column(BEFORE)
        old_values = dict(zip([f.name for f in old_rows.type], old_rows.flatten(), strict=True))
        words = pa.array([self._in(word, f"{word:<6}") for word in OPERATIONS], pa.string())
        start, stop = ("\033[2m", "\033[0m") if self._colours else ("", "")
        parts: list[Any] = [start, plain_texts(batch.column(3)), stop, "  ", words.take(op), "  ", rows.table]
        for name in rows.key:
            new = value_texts(batch.column(name))
            parts += [f" {self._in('bold', printable(name))}=", new]
        shown = pa.repeat(pa.scalar(""), len(batch))
        for name in rows.columns:
            new, old = batch.column(name), old_values[name]
            changed = _differ(new, old)
            is_key = name in rows.key
            both = pc.and_(is_update, changed)
            alone = pa.repeat(False, len(batch)) if is_key else pc.invert(is_update)
            if not pc.any(pc.or_(both, alone)).as_py():
                continue
            new_text = value_texts(new)
            label = f"  {self._in('dim', printable(name) + ':')} "
            text = pc.if_else(alone, pc.binary_join_element_wise(label, new_text, ""), "")
            if pc.any(both).as_py():
                arrow = pc.binary_join_element_wise(label, value_texts(old), " → ", new_text, "")
                text = pc.if_else(both, arrow, text)
            shown = pc.binary_join_element_wise(shown, text, "")
        nothing = pc.and_(is_update, pc.equal(shown, ""))
        parts.append(pc.if_else(nothing, self._in("dim", "  (no shown column changed)"), shown))
        yield pc.binary_join_element_wise(*parts, "\n", "").cast(pa.large_string())

    def of_statement(self, statement: DdlLine, entry: np.void) -> str:
        """Returns the line of a DDL statement."""
        time = self._in("dim", _moment(entry))
        text = cut(printable(" ".join(statement.sql.split())), _LONGEST_STATEMENT)
        return f"{time}  {self._in('ddl', 'ddl   ')}  {text}\n"

    def heads(self, entries: Entries) -> pa.StringArray | None:
        """Returns the line before the changes of each transaction."""
        seqs = entries["seq"].astype(np.int64)
        start, stop = ("\033[2m", "\033[0m") if self._colours else ("", "")
        gtids = gtid_strings(entries).fill_null("")
        space = pc.if_else(pc.equal(gtids, ""), "", "  ")
        files, offsets = _files(seqs, self._source_file), pa.array(seqs & MAX_OFFSET).cast(pa.string())
        return pc.binary_join_element_wise(f"{start}-- ", files, ":", offsets, space, gtids, f"{stop}\n", "")


def _struct(columns: list[pa.Array], fields: list[pa.Field], is_null: pa.Array, count: int) -> pa.StructArray:
    if columns:
        return pa.StructArray.from_arrays(columns, fields=fields, mask=is_null)
    valid = pc.invert(is_null)
    return pa.StructArray.from_buffers(pa.struct([]), count, [valid.buffers()[1]])


def _moment(entry: np.void) -> str:
    """Returns the commit time of a transaction, in the form that rows have it."""
    times = pa.array([int(entry["commit_time_us"])]).view(METADATA_FIELDS[3].type)
    return str(plain_texts(times)[0].as_py())


def _files(seqs: Longs, source_file: Callable[[int], str]) -> pa.StringArray:
    """Returns the name of the source's file of each seq."""
    _, first, inverse = np.unique(seqs >> FILE_SHIFT, return_index=True, return_inverse=True)
    return pa.array([source_file(int(seqs[at])) for at in first], pa.string()).take(pa.array(inverse))


def _differ(new: pa.Array, old: pa.Array) -> pa.BooleanArray:
    """Returns where two arrays differ; null is equal to null."""
    if pa.types.is_nested(new.type):
        new, old = plain_texts(new), plain_texts(old)
    if pa.types.is_null(new.type):
        return pa.repeat(False, len(new))
    return pc.if_else(pc.and_(new.is_null(), old.is_null()), False, pc.fill_null(pc.not_equal(new, old), True))
