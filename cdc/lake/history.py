"""Every change of one row, or of the rows of a range of keys, that a store still has.

The index tells which transactions may have rows of the table. Of those only the key columns are decoded, and compared
as Arrow arrays; the transactions with a match are then decoded whole. Each transaction is decoded with the columns that
the table had at that moment, and the column policies of the configuration hide what they hide in the lake.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UsageError
from cdc.base.validation import there_is
from cdc.binlog.positions import split_seq
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.config.secrets import hash_key
from cdc.decode import DecodeOptions, DecodeStats
from cdc.decode.column_types import DEFAULT_POLICIES, ValuePolicies
from cdc.decode.jsonl import json_lines
from cdc.decode.layout import BEFORE, DELETE, INSERT, METADATA_FIELDS, TableLayout
from cdc.decode.policies import ColumnPolicies, policies_of_layout, value_policies
from cdc.decode.reader import Decoder
from cdc.decode.scan import table_events
from cdc.decode.transactions import Transactions, history_of, open_range
from cdc.lake.rows.row_keys import RowKey, literal_of
from cdc.store.formats.layout import list_segments, schema_files, schemas_folder
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.config import ApplyConfig, DestinationConfig
    from cdc.lake.foreign_keys.row_history import UnloggedChanges

_OPTIONS = DecodeOptions(images="both")


def definition_of(reader: StoreReader, table: str) -> TableSchema:
    """Returns the newest description of a table that the store has. Raises UsageError if there is none."""
    names: set[str] = set()
    for _, file in reversed(schema_files(schemas_folder(reader.path))):
        schemas = Schemas.load(file)
        if table in schemas.tables:
            return schemas.tables[table]
        names |= schemas.tables.keys()
    raise UsageError(
        "the store knows no such table",
        place=f"table {table}",
        remedy=there_is(table, names) or "Start `cdc capture` first.",
    )


@dataclass
class Search:
    """The progress of a search: the changes that it found, and how much it has read."""

    changes: list[dict[str, Any]] = field(default_factory=list)
    """The changes of the row, oldest first, in the form of ``cdc history --json``."""
    rows: int = 0
    """Rows of the table that were compared."""
    lacking: dict[str, int] = field(default_factory=dict)
    """Rows whose table had no column of this name at that time; they were not compared."""
    transactions: int = 0
    """Transactions that were read."""
    candidates: int = 0
    """Transactions that may have rows of the table."""
    keys: list[dict[str, Any]] = field(default_factory=list)
    """The values of the row's key by column, none if no row was compared; of a range those of all rows that were
    found."""
    policies: ColumnPolicies | None = None
    """The policies of the columns at the last change."""

    def shown_names(self, key: RowKey) -> list[str]:
        """Returns the names of the key's columns in the changes, which are those of the lake."""
        columns = () if self.policies is None else self.policies.columns
        names = {column.source.name: column.field.name for column in columns}
        return [names.get(name, name) for name in key.values]


@dataclass(frozen=True)
class HistoryPolicies:
    """The policies that the configuration applies to the columns of a table. ``apply`` None: none."""

    apply: ApplyConfig | None
    values: ValuePolicies = DEFAULT_POLICIES
    key: bytes | None = field(default=None, repr=False)
    """The key of ``hash``."""

    @classmethod
    def of(cls, config: DestinationConfig, table: str) -> HistoryPolicies:
        """Reads the policies of ``db.table``; impossible dates are null. Raises ConfigError if the key of ``hash`` is
        missing."""
        apply = config.table_apply(table)
        hashes = any(policy.kind == "hash" for policy in apply.columns.values())
        return cls(apply, replace(value_policies(apply), zero_dates="null"), hash_key(apply) if hashes else None)

    def of_layout(self, layout: TableLayout) -> ColumnPolicies | None:
        """Returns the policies of the columns of a layout; None: all are kept. Raises ConfigError if one does not
        fit."""
        return None if self.apply is None else policies_of_layout(layout, self.apply, self.key)


UNCHANGED = HistoryPolicies(None)


def applied(policed: ColumnPolicies | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Applies policies to a batch with old rows, which may have columns that the policies do not need."""
    if policed is None:
        return batch
    return policed.apply(batch.select([*(field.name for field in METADATA_FIELDS), *policed.sources, BEFORE]))


def search(
    reader: StoreReader,
    key: RowKey,
    progress: Callable[[Search], None] = lambda _: None,
    policies: HistoryPolicies = UNCHANGED,
) -> Search:
    """Finds every change of the row in the store. ``progress`` is called now and then.

    Raises UsageError for a value that does not fit its column, ConfigError for a policy that does not, DamagedError,
    StorageError, UnsupportedTypeError.
    """
    search = Search()
    numbers = TableNumbers(reader.path)
    if key.table not in numbers.names:
        return search
    mask = 1 << numbers.bit(key.table)
    identities: dict[tuple[Any, ...], None] = {}
    search.candidates = sum(int(np.count_nonzero(e["table_mask"] & np.uint64(mask))) for e in reader.all_entries())
    for segment in list_segments(reader.path):
        transactions = open_range(segment, table_mask=mask).between(0, None)
        if not len(transactions.entries):
            continue
        history = history_of(segment, key.table)
        matched: list[np.ndarray[Any, Any]] = []
        for batch, mine, policed in _decoded(transactions, key, history, search, policies, all_columns=False):
            search.policies = policed
            if key.last is None:
                search.keys = [{name: value.as_py() for name, value in _literals(key, batch.schema).items()}]
            else:
                _require_shown(key, policed)
                identities |= dict.fromkeys(_identities(key, batch.filter(mine)))
            matched.append(batch.column(1).filter(mine).to_numpy())
            progress(search)
        search.transactions += len(transactions.entries)
        seqs = np.unique(np.concatenate(matched)) if matched else np.empty(0)
        if len(seqs):
            some = replace(transactions, entries=transactions.entries[np.isin(transactions.entries["seq"], seqs)])
            for batch, mine, policed in _decoded(some, key, history, Search(), policies, all_columns=True):
                search.changes += _changes(batch.filter(mine), key, policed, reader.source_file)
        progress(search)
    if key.last is not None:
        search.keys = [dict(zip(key.values, identity, strict=True)) for identity in identities]
    return search


def _require_shown(key: RowKey, policies: ColumnPolicies | None) -> None:
    """Raises UsageError if the keys of a range would tell what the lake does not have."""
    if policies is None:
        return
    shown = {column.source.name for column in policies.columns if column.policy.kind in ("keep", "rename")}
    for name in key.values:
        if name not in shown:
            raise UsageError(
                f"the column {name} is not in the lake as it is, so that there are no ranges of it",
                place=f"table {key.table}",
                remedy="Give one key, or `--source-values`.",
            )


def _identities(key: RowKey, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Yields the keys in the range that rows of a batch with old rows had before and after their changes."""
    names = [*key.values]
    after, before = (mask.to_pylist() for mask in matches(batch, key))
    for row, is_after, is_before in zip(batch.select([*names, BEFORE]).to_pylist(), after, before, strict=True):
        for image, is_mine in ((row, is_after), (row[BEFORE], is_before)):
            if is_mine:
                yield tuple(image[name] for name in names)


def _decoded(
    transactions: Transactions,
    key: RowKey,
    history: Any,
    search: Search,
    policies: HistoryPolicies,
    *,
    all_columns: bool,
) -> Iterator[tuple[pa.RecordBatch, pa.Array, ColumnPolicies | None]]:
    """Yields the table's rows, for each whether it is the wanted one before or after the change, and the policies of
    the columns, which are not applied yet."""
    decoder: Decoder | None = None
    policed: ColumnPolicies | None = None
    stats = DecodeStats()
    for run in table_events(transactions, key.table, _OPTIONS.target_bytes, history, policies.values):
        names = [column.name for column in run.layout.columns]
        lacking = [name for name in key.values if name not in names]
        if decoder is None or decoder.layout is not run.layout:
            policed = policies.of_layout(run.layout)
            decoded_names = decodable(run.layout) if all_columns else list(key.values)
            decoder = (
                None if lacking else Decoder(transactions, run.layout, replace(_OPTIONS, columns=decoded_names), stats)
            )
        if decoder is None:
            for name in lacking:
                search.lacking[name] = search.lacking.get(name, 0) + len(run)
            continue
        done = 0
        while done < len(run):
            batch, count = decoder.decode(run.slice(done, len(run)))
            done += count
            search.rows += batch.num_rows
            after, before = matches(batch, key)
            yield batch, pc.or_(after, before), policed


def decodable(layout: TableLayout) -> list[str]:
    """Returns the names of the columns that can be decoded."""
    return [name for name, kind in layout.shape if kind is not None]


def matches(batch: pa.RecordBatch, key: RowKey) -> tuple[pa.Array, pa.Array]:
    """Returns for each row of a batch with old rows whether it is the wanted one after the change, and before it."""
    op = batch.column(0)
    old = batch.column(batch.schema.get_field_index(BEFORE))
    after, before = pc.not_equal(op, DELETE), pc.not_equal(op, INSERT)
    first = _literals(key, batch.schema)
    end = _literals(key, batch.schema, last=True) if key.last is not None else first
    for name, literal in first.items():
        column = batch.column(batch.schema.get_field_index(name))
        after = pc.and_(after, _between(column, literal, end[name]))
        before = pc.and_(before, _between(pc.struct_field(old, name), literal, end[name]))
    return after, before


def _between(values: pa.Array, first: pa.Scalar, last: pa.Scalar) -> pa.Array:
    """Returns for each value whether it is one of a range, both ends included; False for null."""
    within = pc.equal(values, first)
    if first != last:
        within = pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last))
    return pc.fill_null(within, False)


def _literals(key: RowKey, schema: pa.Schema, *, last: bool = False) -> dict[str, pa.Scalar]:
    """Returns the values of a key by column; with ``last`` those of the end of a range. Raises UsageError."""
    place, values = f"of table {key.table}", dict(key.values)
    if last and key.last is not None:
        values[[*values][-1]] = key.last
    return {name: literal_of(text, schema.field(name).type, f"column {name} {place}") for name, text in values.items()}


def _changes(
    batch: pa.RecordBatch, key: RowKey, policed: ColumnPolicies | None, source_file: Callable[[int], str]
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a batch, which are few, in the form of ``cdc history --json``."""
    after, before = (mask.to_pylist() for mask in matches(batch, key))
    batch = applied(policed, batch)
    shown = {name: name for name in batch.schema.names}
    if policed is not None:
        shown = {column.source.name: column.field.name for column in policed.columns}
    lines = b"".join(json_lines(batch)).decode().splitlines()
    names = [name for name in batch.schema.names if name != BEFORE][len(METADATA_FIELDS) :]
    for line, is_after, is_before in zip(lines, after, before, strict=True):
        row = json.loads(line)
        new, old = {name: row[name] for name in names}, row[BEFORE]
        position = split_seq(row["_seq"])
        change = {
            "seq": row["_seq"],
            "row": row["_row"],
            "op": row["_op"],
            "commit_time": row["_commit_time"],
            "gtid": row["_gtid"],
            "file": source_file(row["_seq"]),
            "pos": position.offset,
            "before": old if is_before else None,
            "after": new if is_after else None,
        }
        if row["_op"] == "update" and not (is_after and is_before):
            # The key changed: the row went away under this key, or came.
            other = new if is_before else old
            change["op"] = "delete" if is_before else "insert"
            change["moved_to" if is_before else "moved_from"] = {
                shown[name]: other[shown[name]] for name in key.values if name in shown
            }
        yield change


def add_unlogged(search: Search, key: RowKey, unlogged: UnloggedChanges, source_file: Callable[[int], str]) -> None:
    """Adds the changes of the rows by foreign keys, which are told by ``foreign_key``. They have the values of the
    columns that no key compares from the row's change before."""
    if unlogged.rows is None:
        return
    policies = search.policies
    if policies is not None:
        compared = {*unlogged.rows.schema.names}
        policies = replace(
            policies, columns=tuple(column for column in policies.columns if column.source.name in compared)
        )
    for change, name in zip(_changes(unlogged.rows, key, policies, source_file), unlogged.keys, strict=True):
        search.changes.append({**change, "foreign_key": name})
    search.changes.sort(key=lambda change: (change["seq"], change["row"]))
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    names = search.shown_names(key)

    def identity(image: Mapping[str, Any] | None) -> tuple[Any, ...] | None:
        # One key is that of one row, whatever the lake has of it.
        return None if image is None else () if key.last is None else tuple(image.get(name) for name in names)

    for change in search.changes:
        old, new = identity(change["before"]), identity(change["after"])
        row = {} if old is None else rows.pop(old, {})
        if "foreign_key" in change:
            for image in ("before", "after"):
                change[image] = change[image] and {**row, **change[image]}
        if new is not None:
            rows[new] = change["after"]


def changed_columns(change: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the columns of a change with their values before and after; of an update only those that changed."""
    before, after = change["before"] or {}, change["after"] or {}
    names = [*after, *(name for name in before if name not in after)]
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if change["op"] != "update" or pair[0] != pair[1]}
