"""Shortcuts for tests that make hundreds of Delta tables and care for what happens to them later: tables with their first
rows are written without Spark, and the rows of a merge are decoded in this process.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t

from cdc import pipeline
from cdc.batches.lease import Lease
from cdc.batches.manifest import Manifest, TableResult
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.schemas import TableSchema
from cdc.targets import application_id
from spark_jobs.apply import merge
from spark_jobs.apply.merge import TableMerge
from spark_jobs.apply.prepare import PreparedBatch, prepare
from spark_jobs.apply.statements import user_metadata
from spark_jobs.apply_batch import merge_tables, result_of
from spark_jobs.delta.tables import Origin, Target, properties_of, target_of
from spark_jobs.delta.tracked import Record
from spark_jobs.runtime import session
from spark_jobs.source.columns import columns_of_schema
from spark_jobs.source.data_source import ChangesReader, arrow_schema
from tests.support.apply import OWNER


class _Rows:
    """Stands for Spark's ``DataFrameReader`` and decodes at once, in this process."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._options: dict[str, str] = {}
        self._schema: Any = None

    def format(self, name: str) -> _Rows:
        return self

    def schema(self, schema: Any) -> _Rows:
        self._schema = schema
        return self

    def option(self, name: str, value: str) -> _Rows:
        self._options[name] = value
        return self

    def options(self, **options: str) -> _Rows:
        self._options.update(options)
        return self

    def table(self) -> pa.Table:
        assert self._schema is not None
        reader = ChangesReader(self._options, self._schema)
        batches = [batch for split in reader.partitions() for batch in reader.read(split)]
        return pa.Table.from_batches(batches, schema=arrow_schema(self._schema))

    def load(self) -> Any:
        return self.table() if self._spark is None else self._spark.createDataFrame(self.table(), self._schema)


class _Names(dict[Any, str]):
    """The data sources of a session that needs none."""

    def __missing__(self, key: Any) -> str:
        return "in process"

    def __contains__(self, key: object) -> bool:
        return True


class _Session:
    """Stands for a session of which only ``read`` is used."""

    def __init__(self, spark: Any) -> None:
        self.sources, self.spark = _Names(), self
        self._spark = spark

    @property
    def read(self) -> _Rows:
        return _Rows(self._spark)


@contextmanager
def rows_in_process() -> Iterator[None]:
    """Lets merges decode rows in this process while the block runs: a worker for each table takes a second."""
    original = merge.read_changes

    def read_changes(one: TableMerge, *args: Any, **options: Any) -> Any:
        current: Any = one.session
        if not isinstance(current, _Session):
            one = replace(one, session=_Session(current.spark))  # type: ignore[arg-type]
        return original(one, *args, **options)

    merge.read_changes = read_changes  # type: ignore[assignment]
    try:
        yield
    finally:
        merge.read_changes = original


def fill(config: DestinationConfig, upto_seq: int, schemas: Mapping[str, TableSchema]) -> None:
    """Applies what the store has up to a seq, which must be CREATE statements and then inserts. Mirrors are written as
    one commit, without Spark; other tables take the usual way. ``schemas``: the definitions at that time."""
    service, done = BatchService(config), 0
    while done < upto_seq:
        lease = service.get(OWNER, wait_s=0)
        assert lease is not None
        done = lease.manifest.last_seq
        results = [] if lease.manifest.ddl else _fill(config, service, lease, schemas)
        pipeline.finalize(config, lease, True, results)


def _fill(
    config: DestinationConfig, service: BatchService, lease: Lease, schemas: Mapping[str, TableSchema]
) -> list[TableResult]:
    batch = prepare(lease.manifest, config, lambda: None, service.subscription(lease.manifest.subscriber))
    direct = [table for table in batch.tables if config.table_apply(table).mode == "upsert"]
    results = [_write(batch, target_of(config, table), schemas[table]) for table in direct]
    rest = replace(batch, tables=tuple(table for table in batch.tables if table not in direct))
    return [*results, *(merge_tables(rest, session.acquire(config.spark).tables) if rest.tables else ())]


def _write(batch: PreparedBatch, target: Target, schema: TableSchema) -> TableResult:
    manifest, layout = batch.manifest, batch.layout(target.table)
    columns = columns_of_schema(schema, target.policies)
    one = TableMerge(_Session(None), target, manifest, layout, columns, schema, lambda: None)  # type: ignore[arg-type]
    found: Any = merge.read_changes(one, columns, 0, "after")
    since = manifest.after_seq
    origin = Origin(manifest.server_uuid, manifest.epoch, since, record=Record(since, schema))
    assert target.state() is None
    properties = properties_of(target, columns, schema.primary_key, origin)
    _write_commit(target, found.select([field.name for field in columns.fields]), columns.fields, properties, manifest)
    state = target.state()
    assert state is not None and state.applied_seq == manifest.last_seq
    return result_of(target.table, state)


def _write_commit(
    target: Target, rows: pa.Table, fields: list[t.StructField], properties: dict[str, str], manifest: Manifest
) -> None:
    """Writes version 0 of a Delta table by hand, since no library but Spark's takes properties of one's own."""
    log = Path(target.path) / "_delta_log"
    log.mkdir(parents=True)
    file = Path(target.path) / f"part-00000-{uuid.uuid4()}.parquet"
    pq.write_table(rows, file, coerce_timestamps="us")
    features = ["timestampNtz"] if any(isinstance(field.dataType, t.TimestampNTZType) for field in fields) else []
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if features:
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features}
        protocol["writerFeatures"] = [*features, "appendOnly", "invariants"]
    now = int(time.time() * 1000)
    application = application_id(target.destination, target.table, 0)
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now, "operation": "MERGE", "operationParameters": {},
                        "userMetadata": user_metadata(manifest, target, 0, 0)}},
        {"metaData": {"id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}},
                      "schemaString": t.StructType(fields).json(), "partitionColumns": [],
                      "configuration": properties, "createdTime": now}},
        {"protocol": protocol},
        {"txn": {"appId": application, "version": manifest.last_seq, "lastUpdated": now}},
        {"add": {"path": file.name, "partitionValues": {}, "size": file.stat().st_size, "modificationTime": now,
                 "dataChange": True, "stats": json.dumps({"numRecords": len(rows)})}},
    ]  # fmt: skip
    text = "".join(json.dumps(action) + "\n" for action in actions)
    (log / f"{0:020d}.json").write_text(text, encoding="utf-8")
