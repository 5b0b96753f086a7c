"""The rows of a Delta table that the source has at the table's position, whatever mode the table has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from cdc.lake.delta.sql import quote
from cdc.lake.delta.tables import BEFORE, GONE, PRESENT
from cdc.lake.delta.tracked import tracked_schema
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.runtime.session import setting_of
from cdc.lake.runtime.spark_settings import OLD_VERSIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target
    from cdc.lake.runtime.session import TableSession

_RANK, _IS_PRESENT = "_towpath_rank", "_towpath_present"


class PresentRows(Protocol):
    """The rows of a table as of a position."""

    @property
    def position(self) -> int: ...

    def choose(
        self, session: TableSession, columns: Sequence[str], matches: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        """Returns the rows that ``matches`` chooses, with these columns in Delta. It gets rows with all columns of the
        table, must choose by their values alone, and may be called twice."""
        ...


@dataclass(frozen=True)
class LakeVersion:
    """The rows of a Delta table at one of its versions."""

    target: Target
    version: int
    position: int
    keys: tuple[str, ...]
    """The columns in Delta that identify a row."""
    emptied_seq: int = 0
    """Rows of a changelog up to this seq do not count: a snapshot has read the table, perhaps without a row."""

    @classmethod
    def of(
        cls, target: Target, state: DeltaState, version: int | None = None, position: int | None = None
    ) -> LakeVersion:
        """Returns the rows of a table at a version (None: the newest one) with its position, identified by the source's
        primary key. Raises ConfigError if the lake does not have that."""
        version = state.version if version is None else version
        position = state.applied_seq if position is None else position
        schema = tracked_schema(replace(state, applied_seq=position))
        keys = () if schema is None else columns_of_schema(schema, target.policies).keys(schema.primary_key)
        return cls(target, version, position, keys, loaded_seq(state, position))

    def choose(
        self, session: TableSession, columns: Sequence[str], matches: Callable[[DataFrame], DataFrame]
    ) -> DataFrame:
        with setting_of(session.spark, {OLD_VERSIONS: "false"}):
            rows = session.spark.read.format("delta").option("versionAsOf", self.version).load(self.target.path)
        if self.target.own_rows is not None:
            rows = rows.where(self.target.own_rows)
        mode = self.target.apply.mode
        if mode == "append":
            rows = _latest(since_base(rows, self.emptied_seq), self.keys, matches)
        elif self.target.present_rows is not None:
            rows = rows.where(self.target.present_rows)
        return matches(rows).select(*[f.col(quote(name)) for name in columns])


def loaded_seq(state: DeltaState, upto_seq: int) -> int:
    """Returns the seq of the last snapshot up to a seq, as far as the ledger reaches; 0 if there is none."""
    loads = [entry for _, entry in state.ledger if (entry.get("rebuild") or {}).get("kind") == "snapshot"]
    return max((int(entry["last_seq"]) for entry in loads if int(entry["last_seq"]) <= upto_seq), default=0)


def since_base(rows: DataFrame, emptied_seq: int = 0) -> DataFrame:
    """Returns the rows of a changelog from its newest base on: the last snapshot, or the last TRUNCATE.
    ``emptied_seq``: rows up to it do not count either, as after a TRUNCATE."""
    marks = rows.where(f.col("_op").isin("truncate", "snapshot")).groupBy("_op").agg(f.max("_seq").alias("seq"))
    seqs = {row["_op"]: int(row["seq"]) for row in marks.collect()}
    emptied, loaded = max(seqs.get("truncate", 0), emptied_seq), seqs.get("snapshot", 0)
    counts = f.col("_seq") > max(emptied, loaded)
    if loaded >= emptied and loaded:
        counts = counts | ((f.col("_op") == "snapshot") & (f.col("_seq") == loaded))
    return rows.where(counts)


def _latest(rows: DataFrame, keys: Sequence[str], matches: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Returns the last row of each key in a changelog, without those of deleted keys, and without keys that never had
    a row which ``matches`` chooses."""
    names = [field.name for field in rows.schema.fields if field.name != BEFORE]
    new = rows.where(f.col("_op").isin(*PRESENT))
    chosen_keys = matches(new).select(*[f.col(quote(key)) for key in keys]).distinct()
    old = rows.where(f.col("_op").isin(*GONE))
    gone = old.select(
        *[(f.col(f"{BEFORE}.{quote(name)}") if name in keys else f.col(quote(name))).alias(name) for name in names],
        f.lit(False).alias(_IS_PRESENT),
    )
    present = new.select(*[quote(name) for name in names], f.lit(True).alias(_IS_PRESENT))
    events = matched(present.unionByName(gone), chosen_keys, keys, "left_semi")
    order = Window.partitionBy(*[f.col(quote(key)) for key in keys]).orderBy(
        f.col("_seq").desc(), f.col("_row").desc(), f.col(_IS_PRESENT).desc()
    )
    last = events.withColumn(_RANK, f.row_number().over(order)).where((f.col(_RANK) == 1) & f.col(_IS_PRESENT))
    return last.drop(_RANK, _IS_PRESENT)


def as_decoded(rows: DataFrame, variants: Collection[str]) -> DataFrame:
    """Returns rows of the lake as the decoder delivers them: VARIANT, in these columns, as JSON text."""
    return rows.select(
        *[
            (f.to_json(f.col(quote(name))) if name in variants else f.col(quote(name))).alias(name)
            for name in rows.columns
        ]
    )


def matched(rows: DataFrame, others: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    """Joins rows with others of the same key; null equals null."""
    same: Column = f.lit(True)
    for key in keys:
        same = same & f.col(f"r.{quote(key)}").eqNullSafe(f.col(f"o.{quote(key)}"))
    return rows.alias("r").join(others.alias("o"), same, how)
