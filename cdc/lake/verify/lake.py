"""The lake's side of a verification: checksums and keys of a Delta table at one version, and of changes in the store.

The canonical text of each column is that of :mod:`cdc.lake.verify.columns`, computed by Spark's expressions. A row
counts once; the old image of a change counts minus once, so that a table's rows and the changes after them add up to
the rows of the source.

:mod:`cdc.lake.pipeline` uses it in its own process, and under spark-submit through :mod:`cdc.lake.serve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as f
from pyspark.sql import types as t
from pyspark.sql.window import Window

from cdc.base.targets import SOURCE_COLUMN
from cdc.batches.manifest import Manifest, schemas_of
from cdc.client import open_table_batches
from cdc.config.columns import RESERVED
from cdc.decode.layout import survey
from cdc.decode.policies import value_policies
from cdc.decode.transactions import ALL_TABLES
from cdc.lake.apply.foreign_keys.jobs import is_reached
from cdc.lake.apply.merge import TableMerge, read_changes
from cdc.lake.apply.schema.properties import kept_statements
from cdc.lake.delta.log import open_delta
from cdc.lake.delta.present_rows import since_base
from cdc.lake.delta.proof import position_of
from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import BEFORE, GONE, MODE_PROPERTY, PRESENT, Target, schema_of, target_of
from cdc.lake.rows.column_types import MAX_PRECISION
from cdc.lake.rows.columns import columns_of_layout
from cdc.lake.verify.buckets import Buckets, runs
from cdc.lake.verify.columns import (
    LOW_BITS,
    NULL_WORD,
    WORD_BITS,
    ComparedColumn,
    TableColumns,
    Weights,
    joined_in_pairs,
)
from cdc.lake.verify.compare import BucketSum, KeyedRow, ShownRow
from cdc.lake.verify.run import LakeFacts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.config import DestinationConfig
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.runtime.session import TableSession, TableSessions

_DAYS_TO_1970 = 719_528
"""Days from the year 0 on, as the server's TO_DAYS counts them."""
_MOST_SECONDS = 1 << 39
"""More than the seconds from the year 0 to 9999."""
_FOREIGN_WORD = 2
"""The word of a value that the source's type cannot have: as little a multiple of a weight as that of null."""


class SparkLake:
    """The Delta tables of a destination, read by Spark."""

    def __init__(self, config: DestinationConfig, sessions: TableSessions) -> None:
        self._config, self._sessions = config, sessions

    def find(self, table: str) -> LakeFacts | None:
        """Returns a table as it is now; None if there is none. Raises TargetError, RetryableError."""
        target = target_of(self._config, table)
        state = target.state()
        if state is None:
            return None
        mode = state.properties.get(MODE_PROPERTY, target.apply.mode)
        ours = RESERVED | {SOURCE_COLUMN} if state.is_shared else RESERVED
        columns = [field.name for field in schema_of(state).fields]
        return LakeFacts(
            version=state.version,
            position=position_of(state),
            applied_seq=state.applied_seq,
            mode=mode,
            columns=tuple(name for name in columns if name.lower() not in ours),
            later_columns=_later_columns(state, table) if mode == "append" else (),
            kept=next((str(statement["statement"]) for statement in reversed(kept_statements(state))), ""),
            handle=(target, state),
        )

    @contextmanager
    def open(self, facts: LakeFacts, columns: TableColumns, buckets: Buckets, base: int) -> Iterator[TableRows]:
        """Yields the rows of a table. ``base``: the seq at which a changelog was made anew last."""
        target, state = facts.handle
        with self._sessions.one() as session:
            yield TableRows(self._config, session, LakeTable(target, state, facts.mode), columns, buckets, base)


def _later_columns(state: DeltaState, table: str) -> tuple[str, ...]:
    """Returns the columns that the table's first version lacks. None are known if Delta has removed that version."""
    from deltalake.exceptions import DeltaError

    with open_delta(state.path, table) as delta:
        if delta is None:
            return ()
        names = [field.name for field in delta.schema().fields]
        try:
            delta.load_as_version(0)
        except (DeltaError, OSError):
            return ()
        first = {field.name.lower() for field in delta.schema().fields}
        return tuple(name for name in names if name.lower() not in first)


@dataclass(frozen=True)
class LakeTable:
    """A Delta table at the version that is verified."""

    target: Target
    state: DeltaState
    mode: str


class TableRows:
    """The rows of one Delta table in canonical form."""

    def __init__(
        self,
        config: DestinationConfig,
        session: TableSession,
        table: LakeTable,
        columns: TableColumns,
        buckets: Buckets,
        base: int,
        *,
        repeats: bool = True,
    ) -> None:
        """``base``: the seq of the newest snapshot of a table in mode ``append``; rows before it do not count.
        ``repeats``: whether a row counts each time that a transaction deletes it; see :meth:`without_repeats`."""
        self._config, self._session, self._table, self._columns = config, session, table, columns
        self._buckets, self._base, self._repeats = buckets, base, repeats

    def without_repeats(self) -> TableRows:
        """Returns the same rows, in which a row is deleted once if one transaction deletes it several times without
        inserting it in between. MySQL 9.7 writes that when a cascade comes back to the row that it began with."""
        return TableRows(
            self._config, self._session, self._table, self._columns, self._buckets, self._base, repeats=False
        )

    # --- sums

    def sums(self, without: Sequence[str] = ()) -> dict[int, BucketSum]:
        """Returns the checksums of the table's buckets. ``without``: canonical keys that do not count."""
        return self._sums(self._stored(), without)

    def changed_sums(self, manifest: Manifest, without: Sequence[str] = ()) -> dict[int, BucketSum]:
        """Returns the checksums of what a batch adds to the buckets, minus those of what it removes."""
        changes = self._changed(manifest)
        return {} if changes is None else self._sums(changes, without)

    def _sums(self, rows: DataFrame, without: Sequence[str]) -> dict[int, BucketSum]:
        if without:
            rows = rows.where(~f.col("k").isin(list(without)))
        sums = rows.groupBy("b").agg(f.sum("sign").alias("n"), f.sum(f.col("sign") * f.col("c")).alias("s"))
        return {int(row["b"]): BucketSum(int(row["n"]), int(row["s"])) for row in sums.collect()}

    # --- rows

    def rows(self, buckets: Sequence[int] = (), keys: Sequence[str] = ()) -> Iterator[KeyedRow]:
        """Yields the rows in these buckets, or with these canonical keys."""
        yield from self._rows(self._stored(), buckets, keys)

    def changed_rows(
        self, manifest: Manifest, buckets: Sequence[int] = (), keys: Sequence[str] = ()
    ) -> Iterator[KeyedRow]:
        """Yields the images of a batch's changes in these buckets, or with these keys, in the order of the changes."""
        changes = self._changed(manifest)
        if changes is not None:
            yield from self._rows(changes.orderBy("seq", "row", "sign"), buckets, keys)

    def changed_keys(self, manifest: Manifest, after_seq: int) -> set[str]:
        """Returns the canonical keys that a batch changes after a seq."""
        changes = self._changed(manifest)
        if changes is None:
            return set()
        return {str(row["k"]) for row in changes.where(f.col("seq") > after_seq).select("k").distinct().collect()}

    def _rows(self, rows: DataFrame, buckets: Sequence[int], keys: Sequence[str]) -> Iterator[KeyedRow]:
        condition = f.col("k").isin(list(keys)) if keys else f.col("b").isin(list(buckets))
        for row in rows.where(condition).toLocalIterator():
            yield KeyedRow(str(row["k"]), int(row["c"]), int(row["sign"]), int(row["seq"]))

    def shown(self, keys: Sequence[str]) -> Iterator[ShownRow]:
        """Yields the rows with these keys, with their values."""
        rows = self._stored(shown=True).where(f.col("k").isin(list(keys)))
        names = [column.lake for column in self._columns.all]
        for row in rows.collect():
            if row["sign"] > 0:
                pairs = {name: (str(row[f"p{i}"]), row[f"v{i}"]) for i, name in enumerate(names)}
                yield ShownRow(str(row["k"]), int(row["c"]), pairs)

    def repeated(self) -> set[int]:
        """Returns the buckets that have several rows with one key, among the rows that are marked as deleted, too."""
        rows = self._canonical(self._read(), "", f.lit(1), f.lit(0), f.lit(0))
        several = rows.groupBy("b", "k").agg(f.count(f.lit(1)).alias("n")).where(f.col("n") > 1)
        return {int(row["b"]) for row in several.select("b").distinct().collect()}

    def has_unlogged_changes(self, after_seq: int, until_seq: int) -> bool:
        """Whether foreign keys may have changed rows in a range, for which the store has no changes."""
        batches = open_table_batches(self._config)
        return is_reached(self._config, self._table.target.table, batches, after_seq, until_seq)

    def version_faults(self) -> list[str]:
        """Returns the faults of the versions of a table in mode ``scd2``: those of one key must not overlap, and only
        the last one may be current. Those of a key that the server cannot compute, a hashed one, are not looked at."""
        if self._table.mode != "scd2" or not self._columns.keys:
            return []
        rows = self._read()
        key = _text(_pieces(self._columns.keys, "", _types(rows, "")))
        begins, ends = f.col("_valid_from"), f.col("_valid_to")
        in_order = Window.partitionBy("k").orderBy(begins.asc(), ends.asc_nulls_last(), f.col("_seq").asc())
        following = f.lead(begins).over(in_order)
        checked = rows.withColumn("k", key).withColumn("following", following)
        overlaps = f.col("following").isNotNull() & (ends.isNull() | (f.col("following") < ends))
        # Null compared with anything is null: a version that ends is not null in both.
        wrong = f.coalesce(overlaps, f.lit(False)) | f.coalesce(ends < begins, f.lit(False))
        wrong = wrong | f.coalesce(f.col("_current") != ends.isNull(), f.lit(True))
        count = checked.where(wrong).count()
        return [f"{count} versions overlap the next one of their key, or are current without being the last"] * bool(
            count
        )

    # --- the canonical form

    def _read(self) -> DataFrame:
        state = self._table.state
        rows = self._session.spark.read.format("delta").option("versionAsOf", state.version).load(state.path)
        own = self._table.target.own_rows
        return rows if own is None else rows.where(own)

    def _stored(self, *, shown: bool = False) -> DataFrame:
        rows, mode = self._read(), self._table.mode
        if mode == "append":
            return self._of_changelog(rows, shown=shown)
        if mode == "soft_delete":
            rows = rows.where(~f.col("_deleted"))
        elif mode == "scd2":
            rows = rows.where(f.col("_current"))
        return self._canonical(rows, "", f.lit(1), f.lit(0), f.lit(0), shown=shown)

    def _of_changelog(self, rows: DataFrame, *, shown: bool) -> DataFrame:
        """Returns the new images of a changelog once and the old ones minus once, from its newest base on: the last
        snapshot, or the last TRUNCATE."""
        rows = since_base(rows, self._base)
        new = self._canonical(
            rows.where(f.col("_op").isin(*PRESENT)), "", f.lit(1), f.col("_seq"), f.col("_row"), shown=shown
        )
        # The columns of a delete hold the old row, as _before does.
        old = self._canonical(
            rows.where(f.col("_op").isin(*GONE)), f"{BEFORE}.", f.lit(-1), f.col("_seq"), f.col("_row"), shown=shown
        )
        return self._images(new, old)

    def _images(self, new: DataFrame, old: DataFrame) -> DataFrame:
        """Returns new and old images of changes together."""
        images = new.unionByName(old)
        if self._repeats:
            return images
        previous = f.lag(f.struct("sign", "row")).over(Window.partitionBy("k", "seq").orderBy("row", "sign"))
        images = images.withColumn("previous", previous)
        # The same row of an event twice is a fault of the Delta table's, and stays.
        return images.where("sign = 1 OR previous IS NULL OR previous.sign = 1 OR previous.row = row").drop("previous")

    def _changed(self, manifest: Manifest) -> DataFrame | None:
        """Returns the images of a batch's changes after the table's position; None if it has none of the table."""
        target = self._table.target
        schemas, mask = schemas_of(manifest), manifest.table_mask(target.table)
        contents = survey(
            manifest.ranges,
            [target.table],
            schemas,
            lambda _: value_policies(target.apply),
            ALL_TABLES if mask is None else mask,
        )
        layout = contents.layouts.get(target.table)
        if layout is None:
            return None
        columns = columns_of_layout(layout, target.policies)
        merge = TableMerge(
            session=self._session,
            target=target,
            manifest=manifest,
            layout=layout,
            columns=columns,
            schema=None if schemas is None else schemas.tables.get(target.table),
            check=lambda: None,
        )
        rows = read_changes(merge, columns, manifest.after_seq, "both")
        new = self._canonical(rows.where(f.col("_op") != 0), "", f.lit(1), f.col("_seq"), f.col("_row"))
        old = self._canonical(
            rows.where(f.col(BEFORE).isNotNull()), f"{BEFORE}.", f.lit(-1), f.col("_seq"), f.col("_row")
        )
        return self._images(new, old)

    def _canonical(
        self, rows: DataFrame, prefix: str, sign: Column, seq: Column, row: Column, *, shown: bool = False
    ) -> DataFrame:
        """Returns bucket ``b``, key ``k``, checksum ``c``, ``sign``, ``seq`` and ``row`` of each row; with ``shown``
        the values as text as well. ``prefix`` selects the image."""
        columns = self._columns
        types = _types(rows, prefix)
        key = _text(_pieces(columns.keys or columns.compared, prefix, types))
        words = [word(column, at, prefix, types[column.lake.lower()]) for at, column in enumerate(columns.compared)]
        joined = joined_in_pairs(words, lambda left, right: left.bitwiseXOR(right)).bitwiseAND(f.lit(WORD_BITS))
        checksum = f.crc32(joined.cast("string"))
        if columns.read:  # the server computes the checksum of the others, and a client the rest
            text = f.concat(checksum.cast("string"), f.lit(","), _text(_pieces(columns.read, prefix, types)))
            checksum = f.crc32(f.crc32(text).cast("string"))
        return rows.select(
            bucket_of(columns, self._buckets, prefix, types).alias("b"),
            key.alias("k"),
            checksum.alias("c"),
            sign.alias("sign"),
            seq.alias("seq"),
            row.alias("row"),
            *(self._values(prefix, types) if shown else ()),
        )

    def _values(self, prefix: str, types: Mapping[str, t.DataType]) -> list[Column]:
        columns = self._columns.all
        pieces = [value.alias(f"p{i}") for i, value in enumerate(_pieces(columns, prefix, types))]
        return pieces + [readable(column, prefix).alias(f"v{i}") for i, column in enumerate(columns)]


def bucket_of(columns: TableColumns, buckets: Buckets, prefix: str, types: Mapping[str, t.DataType]) -> Column:
    """Returns the number of a row's bucket, which is never null. ``types``: those of the columns, by their names in
    lower case."""
    if buckets.is_ranges:
        return _range_of(f.col(prefix + quote(columns.keys[0].lake)), buckets.borders, 0, len(buckets.borders))
    if buckets.is_plain:
        remainder = f.col(prefix + quote(columns.keys[0].lake)) % f.lit(buckets.count)
        return f.coalesce(remainder.cast("long"), f.lit(0).cast("long"))
    return f.crc32(_text(_pieces(columns.keys or columns.compared, prefix, types))) % buckets.count


def in_buckets(
    columns: TableColumns, buckets: Buckets, numbers: Iterable[int], types: Mapping[str, t.DataType]
) -> Column:
    """Returns whether a row is in one of these buckets, which is never null. Ranges of an integer are compared with
    their borders, so that files and row groups with other keys are not read. ``numbers``: in order."""
    name = columns.keys[0].lake if columns.keys else ""
    is_integer = isinstance(types.get(name.lower()), t.IntegerType | t.LongType)
    if not is_integer or not buckets.is_ranges or buckets.borders[-1] >> 63 > 0:
        return bucket_of(columns, buckets, "", types).isin(list(numbers))
    key, last = f.col(quote(name)), len(buckets.borders)
    parts = [f.lit(False)]
    for first, final in runs(numbers):
        low = [key > f.lit(buckets.borders[first - 1])] if first else []
        high = [key <= f.lit(buckets.borders[final])] if final < last else []
        within = reduce(and_, [key.isNotNull(), *low, *high])
        parts.append(within if final < last else within | key.isNull())
    return reduce(or_, parts)


def _range_of(number: Column, borders: Sequence[int], first: int, last: int) -> Column:
    """The number of a range between the ``first`` and the ``last`` one, by bisection."""
    if first == last:
        return f.lit(first).cast("long")
    half = (first + last) // 2
    border = f.lit(str(borders[half])).cast("decimal(20,0)") if borders[half] >> 63 > 0 else f.lit(borders[half])
    below, above = _range_of(number, borders, first, half), _range_of(number, borders, half + 1, last)
    return f.when(number <= border, below).otherwise(above)


def _text(pieces: Iterable[Column]) -> Column:
    return f.concat(*[part for piece in pieces for part in (piece, f.lit(","))])


def _pieces(columns: Iterable[ComparedColumn], prefix: str, types: Mapping[str, t.DataType]) -> list[Column]:
    return [piece(column, prefix, types[column.lake.lower()]) for column in columns]


def _types(rows: DataFrame, prefix: str) -> dict[str, t.DataType]:
    """Returns the types of the columns of an image, by their names in lower case."""
    fields = rows.schema
    if prefix:
        image = fields[prefix.removesuffix(".")].dataType
        assert isinstance(image, t.StructType)
        fields = image
    return {field.name.lower(): field.dataType for field in fields.fields}


def _bits(value: Column, method: str, kind: str) -> Column:
    """The bits of a floating-point number; zero's for null."""
    number = f.java_method(f.lit(f"java.lang.{kind}"), f.lit(method), f.coalesce(value, f.lit(0).cast(kind.lower())))
    return number.cast("long")


def _swapped(bits: Column) -> Column:
    """32 bits as eight hexadecimal digits, with their bytes in the opposite order."""
    digits = f.substring(f.lpad(f.hex(bits), 16, "0"), 9, 8)
    return f.concat(*[f.substring(digits, at, 2) for at in (7, 5, 3, 1)])


def _value(column: ComparedColumn, c: Column, kind: t.DataType) -> Column:
    """The value that the piece is made of, as text; null stays null. ``text`` and ``long`` are made by the caller."""
    if column.kind == "number":
        return _number(column, c, kind)
    if column.kind == "truth":
        return c.cast("int").cast("string")
    if column.kind == "real":
        bits = _bits(c.cast("double"), "doubleToRawLongBits", "Double")
        return f.when(c.isNotNull(), f.when(bits == 0, f.lit("x")).otherwise(f.concat(f.lit("x"), f.hex(bits))))
    if column.kind == "reals":
        parts = f.transform(c, lambda number: _swapped(_bits(number, "floatToRawIntBits", "Float")))
        return f.concat(f.lit("v"), f.array_join(parts, ""))
    if column.kind == "day":  # numbers take Spark a quarter of the time of texts
        return (f.unix_date(c) + _DAYS_TO_1970).cast("string")
    if column.kind == "instant":
        return (f.unix_micros(c.cast("timestamp")) + _DAYS_TO_1970 * 86_400_000_000).cast("string")
    return c.cast("string")


def _number(column: ComparedColumn, c: Column, kind: t.DataType) -> Column:
    """The digits of a number, with as many in its fraction as its type at the source has, if those of the lake's column
    do not differ from it. Delta may have kept an earlier type."""
    text = c.cast("string")
    if isinstance(kind, t.FloatType | t.DoubleType):
        number = text.try_cast(t.DecimalType(MAX_PRECISION, column.scale))
        return f.when(number.cast(kind) == c, number.cast("string")).otherwise(text)
    if not isinstance(kind, t.DecimalType) or kind.scale <= column.scale:
        return text
    zeros = rf"(?<=\.[0-9]{{{column.scale}}})0+$" if column.scale else r"\.0+$"
    return f.regexp_replace(text, zeros, "")


def word(column: ComparedColumn, at: int, prefix: str, kind: t.DataType) -> Column:
    """Returns the word of a column of type ``kind`` at this position, which is never null."""
    c, weights = f.col(prefix + quote(column.lake)), Weights.of(at)
    if column.form == "piece":
        return f.crc32(piece(column, prefix, kind)) * weights.large
    if column.form == "bytes":
        raw = (c.cast("string") if column.kind == "text" else c).cast("binary")
        return f.coalesce(f.crc32(raw) * weights.large, f.lit(NULL_WORD))
    if column.form == "day":
        return f.coalesce((f.unix_date(c) + _DAYS_TO_1970).cast("long") * weights.large, f.lit(NULL_WORD))
    if column.form == "instant":
        moment = c.cast("timestamp")
        whole = f.unix_seconds(moment)
        seconds, fraction = whole + _DAYS_TO_1970 * 86_400, f.unix_micros(moment) - whole * 1_000_000
        value = f.when(seconds.between(0, _MOST_SECONDS), seconds * weights.small + fraction * weights.large)
        return f.when(c.isNull(), f.lit(NULL_WORD)).otherwise(f.coalesce(value, f.lit(_FOREIGN_WORD)))
    if isinstance(kind, t.ByteType | t.ShortType | t.IntegerType) and column.form == "small":
        return f.coalesce(c.cast("long") * weights.large, f.lit(NULL_WORD))
    number = _long(column, c, kind)
    if column.form == "small":
        value = f.try_multiply(number, f.lit(weights.large))
    else:
        high = f.shiftrightunsigned(number, LOW_BITS.bit_length())
        value = number.bitwiseAND(f.lit(LOW_BITS)) * weights.large + high * weights.middle
    return f.when(c.isNull(), f.lit(NULL_WORD)).otherwise(f.coalesce(value, f.lit(_FOREIGN_WORD)))


def _long(column: ComparedColumn, c: Column, kind: t.DataType) -> Column:
    """The value as a BIGINT; null for one that is no integer of 64 bits, which a column of another type may hold."""
    if isinstance(kind, t.ByteType | t.ShortType | t.IntegerType | t.LongType):
        return c.cast("long")
    text = _number(column, c, kind)
    number = text.try_cast("long")
    return f.when(number.cast("string") == text, number)


def piece(column: ComparedColumn, prefix: str, kind: t.DataType) -> Column:
    """Returns the piece of a column of type ``kind`` in the canonical text, which is never null."""
    c = f.col(prefix + quote(column.lake))
    if column.kind == "nothing":
        return f.when(c.isNull(), f.lit("")).otherwise(f.lit("?"))
    if column.kind == "text":
        text = f.concat(f.octet_length(c).cast("string"), f.lit(":"), c)
    elif column.kind == "long":
        text = f.concat(f.octet_length(c).cast("string"), f.lit(":"), f.crc32(c.cast("binary")).cast("string"))
    elif column.kind == "json":
        text = f.crc32(c.cast("binary")).cast("string")
    else:
        text = _value(column, c, kind)
    return f.coalesce(text, f.lit(""))


def readable(column: ComparedColumn, prefix: str) -> Column:
    """Returns a column's value as people read it."""
    c = f.col(prefix + quote(column.lake))
    if column.kind == "long":
        # Bytes are shown in hexadecimal digits on both sides.
        return f.hex(c) if column.shown.startswith("HEX(") else c.cast("string")
    if column.kind in ("truth", "reals"):
        return _value(column, c, t.NullType())
    return c.cast("string")
