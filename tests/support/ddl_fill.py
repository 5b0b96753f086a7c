"""Writes tables with their first rows without Spark, for tests that make hundreds of them and care for what happens to
them later."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import types as t

from cdc.base.targets import application_id
from cdc.batches.lease import Lease
from cdc.batches.manifest import Manifest, TableResult
from cdc.batches.service import BatchService
from cdc.binlog.sql.schemas import TableSchema
from cdc.config import DestinationConfig
from cdc.decode.layout import METADATA_FIELDS
from cdc.lake import pipeline
from cdc.lake.apply.batch import merge_tables, result_of
from cdc.lake.apply.prepare import PreparedBatch, prepare
from cdc.lake.apply.statements import user_metadata
from cdc.lake.delta.tables import TableOrigin, Target, properties_of, target_of
from cdc.lake.delta.tracked import SchemaRecord
from cdc.lake.rows.changes import read_all
from cdc.lake.rows.column_types import from_arrow_schema
from cdc.lake.rows.columns import columns_of_schema
from cdc.lake.rows.input_splits import SPLIT_BYTES, input_splits
from cdc.lake.rows.split_reader import SplitReader
from cdc.lake.runtime import session
from tests.support.apply import OWNER


def fill(config: DestinationConfig, upto_seq: int, schemas: Mapping[str, TableSchema]) -> None:
    """Applies what the store has up to a seq, which must be CREATE statements and then inserts. Mirrors are written as
    one commit, without Spark; other tables take the usual way. ``schemas``: the definitions at that time. Without any
    table, nothing is taken: a batch of CREATE DATABASE would go on with the statements after ``upto_seq``."""
    if not schemas:
        return
    service, done = BatchService(config), 0
    while done < upto_seq:
        lease = service.get(OWNER, wait_s=0)
        assert lease is not None
        done = lease.manifest.last_seq
        assert done <= upto_seq or not lease.manifest.ddl, "statements after the first rows would be acked unapplied"
        results = [] if lease.manifest.ddl else _fill(config, service, lease, schemas)
        pipeline.finalize(config, lease, True, results)


def _fill(
    config: DestinationConfig, service: BatchService, lease: Lease, schemas: Mapping[str, TableSchema]
) -> list[TableResult]:
    batch = prepare(lease.manifest, config, lambda: None, service.subscription(lease.manifest.subscriber))
    direct = [table for table in batch.tables if config.table_apply(table).mode == "upsert"]
    results = [_write(batch, target_of(config, table), schemas[table]) for table in direct]
    merged_batch = replace(batch, tables=tuple(table for table in batch.tables if table not in direct))
    return [
        *results,
        *(merge_tables(merged_batch, session.acquire(config.spark).tables) if merged_batch.tables else ()),
    ]


def _write(batch: PreparedBatch, target: Target, schema: TableSchema) -> TableResult:
    manifest = batch.manifest
    columns = columns_of_schema(schema, target.policies)
    fields = t.StructType([*from_arrow_schema(pa.schema(METADATA_FIELDS)), *columns.read_fields])
    reader = SplitReader(
        table=target.table, fields=fields, images="after", after_seq=0, upto_seq=manifest.last_seq, schema=schema,
        columns=columns.options().get("columns"), values=columns.options().get("values"), key=None,
    )  # fmt: skip
    mask = manifest.table_mask(target.table)
    rows = read_all(reader, input_splits(manifest.ranges, 0, SPLIT_BYTES, target.table, mask))
    since = manifest.after_seq
    origin = TableOrigin(manifest.server_uuid, manifest.epoch, since, record=SchemaRecord(since, schema))
    assert target.state() is None
    properties = properties_of(target, columns, schema.primary_key, origin)
    _write_commit(target, rows.select([field.name for field in columns.fields]), columns.fields, properties, manifest)
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
