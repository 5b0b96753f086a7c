"""``apply``: what becomes of the changes in the Delta tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from cdc.config.catalog import CatalogConfig
from cdc.config.columns import POLICIES, Columns, Types, ZeroDates
from cdc.config.delta import Properties
from cdc.config.secret_source import Secret
from cdc.config.values import Doc, FilePath, FilledText, Section, Whole, below

MODES = {
    "upsert": "a mirror of the source's table, equal to SELECT",
    "soft_delete": "the same, but deleted rows stay and are marked, with `_deleted`, `_commit_time` and `_seq`",
    "append": "a changelog: each change is a row, with `_op`, `_seq`, `_commit_time` and `_before`",
    "scd2": "a history: each version of a row is a row, with `_valid_from`, `_valid_to`, `_current` and `_seq`",
}
"""The modes that are available, each with its meaning."""
Mode = Annotated[Literal["upsert", "soft_delete", "append", "scd2"], WithJsonSchema({"enum": list(MODES)})]

OnError = Literal["block", "park"]
OnParked = Literal["fail", "warn"]
SchemaChanges = Literal["evolve", "additive", "ignore", "fail"]
OnTruncate = Literal["apply", "ignore", "fail"]
Engine = Literal["spark", "deltalake"]
OnDrop = Literal["keep", "drop", "fail"]
OnDropPartition = Literal["apply", "keep", "snapshot"]
OnUnknownEffect = Literal["snapshot", "fail"]
ForeignKeys = Literal["follow", "park", "ignore"]


class SmallBatches(Section):
    """Merges of few changes without Spark, to save the time and the memory that a JVM takes to start."""

    engine: Annotated[
        Engine,
        Doc(
            choices={
                "spark": "Spark merges all batches",
                "deltalake": "the library `deltalake` (delta-rs) merges a table's changes if they are few, and Spark "
                "the others; Spark is started when a table needs it",
            }
        ),
    ] = "spark"
    """The engine that merges a table's changes if they are at most `max_rows`."""
    max_rows: Annotated[Whole | None, Doc(only_with="engine: deltalake", example=10000)] = Field(default=None, gt=0)
    """Limit of a table's changes in a batch for delta-rs."""

    def _contradictions(self) -> Iterator[str]:
        if self.engine == "deltalake" and self.max_rows is None:
            yield "engine deltalake needs max_rows: the most changes of a table that are merged without Spark"
        if self.engine == "spark" and self.max_rows is not None:
            yield "max_rows has no effect with engine spark; write engine: deltalake, or remove it"


class ApplyConfig(Section):
    """Form of the changes in the Delta tables. `tables.overrides` sets it for single tables."""

    mode: Annotated[Mode, Doc(choices=MODES)] = "upsert"
    """Content of a Delta table."""
    target: Annotated[FilledText, Doc(example="./lake")]
    """Folder or URI of the Delta tables; each is `TARGET/DATABASE/TABLE`. A URI is any that Spark can write, like
    `s3a://bucket/lake`. A relative folder is taken from the folder above that of this file."""
    shared: bool = False
    """Whether several destinations write the Delta tables under `target`, each its own rows, which the column `_source`
    names. All of them must say so, with the same `mode` and `target`, and with `schema_changes: additive`."""
    keys: tuple[str, ...] | None = None
    """Columns that identify a row, for tables without a primary key; null means the primary key."""
    zero_dates: Annotated[
        ZeroDates, Doc(choices={"null": "they become null", "fail": "a batch that holds one is refused"})
    ] = "null"
    """Treatment of zero and impossible dates, like `0000-00-00` and `2023-02-31`."""
    on_error: Annotated[
        OnError,
        Doc(
            choices={
                "park": "the table is left out and its changes are kept until it can be applied; the others go on",
                "block": "the run fails, and its batch is taken again by the next one",
            }
        ),
    ] = "park"
    """Treatment of a table whose changes cannot be applied."""
    on_parked: Annotated[
        OnParked,
        Doc(
            choices={
                "fail": "the run fails at its end, after everything else is applied and acked",
                "warn": "the run succeeds, and says which tables it has left out",
            }
        ),
    ] = "fail"
    """End of a run while tables are left out that an error or a statement has parked. Tables that wait for their first
    snapshot fail no run."""
    schema_changes: Annotated[
        SchemaChanges,
        Doc(
            choices={
                "evolve": "columns are added, dropped, renamed and get other types as at the source",
                "additive": "columns are only added and widened: a dropped one stays, a renamed one is there twice",
                "ignore": "columns stay as they are: new ones are left out, and in dropped ones only new rows are null",
                "fail": "a statement that changes columns is refused",
            }
        ),
    ] = "evolve"
    """Treatment of statements that change the columns of a table."""
    on_truncate: Annotated[
        OnTruncate,
        Doc(
            choices={
                "apply": "the rows go, or are marked, as by deletes; a changelog gets a row with `_op` truncate",
                "ignore": "the rows stay",
                "fail": "the statement is refused",
            }
        ),
    ] = "apply"
    """Treatment of TRUNCATE TABLE."""
    on_drop: Annotated[
        OnDrop,
        Doc(
            choices={
                "keep": "the Delta table stays as it is, until a table of that name is created again",
                "drop": "its rows are deleted; files and history stay until they are vacuumed",
                "fail": "the statement is refused",
            }
        ),
    ] = "keep"
    """Treatment of DROP TABLE and DROP DATABASE."""
    on_drop_partition: Annotated[
        OnDropPartition,
        Doc(
            choices={
                "apply": "their rows go, or are marked, as by deletes; a changelog gets a row for each of them",
                "keep": "their rows stay: the Delta table is the archive of what the source drops",
                "snapshot": "the table is left out until `cdc snapshot` has read it again",
            }
        ),
    ] = "apply"
    """Treatment of rows that leave a partitioned table by ALTER TABLE … DROP PARTITION, TRUNCATE PARTITION, EXCHANGE
    PARTITION or CONVERT PARTITION."""
    on_unknown_effect: Annotated[
        OnUnknownEffect,
        Doc(
            choices={
                "snapshot": "the table is left out until `cdc snapshot` has read it again; the others go on",
                "fail": "the statement is refused",
            }
        ),
    ] = "snapshot"
    """Treatment of statements after which only the server knows the rows, like a new column with AUTO_INCREMENT."""
    foreign_keys: Annotated[
        ForeignKeys,
        Doc(
            choices={
                "follow": "the actions are executed on the rows of the Delta table, or as `park` if they cannot be",
                "park": "the table is left out until `cdc snapshot` has read it again; the others go on",
                "ignore": "such rows stay as they were, and the Delta table differs from the source",
            }
        ),
    ] = "follow"
    """Treatment of the rows that a foreign key (`ON DELETE CASCADE` and its like) changes without row events when rows
    of its parent are deleted or changed."""
    small_batches: SmallBatches = SmallBatches()
    """Merges of few changes without Spark."""
    catalog: Annotated[CatalogConfig, BeforeValidator(lambda value: {} if value is None else value)] = CatalogConfig()
    """Registration of the tables in a catalog."""
    comments: bool = True
    """Whether the Delta tables and their columns get the comments of the source. They change no row."""
    constraints: Annotated[bool, Doc(only_with="mode: upsert")] = False
    """Whether columns that are NOT NULL at the source are NOT NULL in the Delta table, and its property
    `towpath.primary_key` names the primary key. Columns that may become null on their way are left out: dates with
    `zero_dates: null`, and those with the policy `null`."""
    deletion_vectors: bool = False
    """Whether a table may get Delta's deletion vectors. A merge then marks scattered changed rows of a large table
    instead of rewriting the files that hold them. Readers of the table must know deletion vectors: `cdc status --json`
    names the readers of each table. A table that has them already keeps them, and one whose property
    `delta.enableDeletionVectors` is `false` gets none."""
    partition_by: tuple[str, ...] | None = None
    """Columns whose values become folders of the Delta table: whole numbers, decimals, booleans or dates. A table that
    is there keeps its partitions until `cdc replay` or `cdc snapshot` writes it anew. It makes sense where a partition
    has a gigabyte or more; `cluster_by` suits other tables better."""
    cluster_by: tuple[str, ...] | None = Field(default=None, max_length=4)
    """Columns by which `cdc maintain` clusters the rows of the Delta table (liquid clustering), at most four. It may be
    changed at any time; `[]` ends it."""
    properties: Annotated[Properties, Doc(example={"delta.enableChangeDataFeed": "true"})] = Field(default_factory=dict)
    """Properties of the Delta table. Those that Towpath sets, or that other keys stand for, are refused. A property
    that is removed from here stays in tables that have it."""
    types: Types = Field(default_factory=dict)
    """Types with another form in Delta: `{tinyint(1): boolean, bit(1): boolean, time: microseconds, json: variant}`."""
    columns: Annotated[Columns, Doc(choices=POLICIES)] = Field(default_factory=dict)
    """Policies by the name of a column, like `{password: drop}`, for every table that has such a column."""
    hash_key_env: str | None = None
    """Environment variable that holds the key of the policy `hash`."""
    hash_key_file: Annotated[FilePath | None, Doc(example="shop.hash_key", instead_of="hash_key_env")] = None
    """File whose first line is the key of the policy `hash`. A relative path is taken from the folder of this
    file."""

    hash_key: ClassVar = Secret("apply", "the key of hash")

    @field_validator("target")
    @classmethod
    def _target(cls, target: str, info: ValidationInfo) -> str:
        return target if info.context is None else lake_uri(info.context, target)


def lake_uri(file: Path, uri: str) -> str:
    """Returns the folder or URI of Delta tables that a configuration file names: a relative folder is taken from the
    folder above that of the file."""
    return uri if "://" in uri else str(below(file.parent.parent, Path(uri)))
