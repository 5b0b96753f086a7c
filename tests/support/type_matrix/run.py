"""Runs the matrix on a server: through the decoder only, or through capture, store and Spark into Delta."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import yaml
from deltalake import DeltaTable, QueryBuilder

from cdc.base.errors import CdcError
from cdc.base.targets import table_path
from cdc.batches.service import BatchService
from cdc.capture import Capture
from cdc.config import DestinationConfig, TablesConfig, load
from cdc.decode import DecodeOptions, read
from cdc.lake import pipeline
from cdc.source.schemas import read_schemas
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.snapshots import selector
from tests.support.type_matrix import catalog, plan, workload
from tests.support.type_matrix.column import Table
from tests.support.type_matrix.compare import Result, compare


@dataclass(frozen=True)
class Run:
    """The result of the matrix on a server."""

    kind: str
    """``mysql9``, …"""
    catalog: catalog.Catalog
    tables: tuple[Table, ...]
    result: Result


def decoded(server: Server, *, text_step: int = 1) -> Run:
    """Writes the matrix and decodes the server's own binlog files, without capture and Spark."""
    with _database(server, text_step) as (types, tables, database), server.connect() as connection:
        schemas = read_schemas(connection, TablesConfig(include=[f"{database}\\..*"]))
        result = Result()
        with tempfile.TemporaryDirectory(prefix="towpath-matrix-") as folder:
            observed = workload.run(connection, database, tables, selector(server, database, Path(folder)))
        for seen in observed:
            try:
                batches = list(
                    read(
                        server.data / seen.file,
                        table=f"{database}.{seen.table.name}",
                        schemas=schemas,
                        options=DecodeOptions(images="both"),
                    )
                )
                arrived = pa.Table.from_batches(batches)
            except CdcError as error:
                result.faults.append(f"{seen.table.name} cannot be decoded: {error}")
                continue
            compare(seen, arrived, result)
        return Run(server.kind.name, types, tuple(tables), result)


def applied(server: Server, folder: Path, spark: dict[str, object], *, text_step: int = 1) -> Run:
    """Writes the matrix, captures it, applies it in mode ``append``, and reads the Delta tables with ``deltalake``.

    ``folder`` holds configuration, store and lake. ``spark`` is the configuration's key ``spark``.
    """
    with _database(server, text_step) as (types, tables, database), server.connect() as connection:
        config = _configured(server, folder, database, spark)
        Capture(config).run(until_current=True)  # start: now, after the tables were created
        observed = workload.run(connection, database, tables, selector(server, database, folder / "snapshot"))
        Capture(config).run(until_current=True)
        service = BatchService(config)
        while (lease := service.get("matrix", wait_s=0)) is not None:
            pipeline.finalize(config, lease, True, pipeline.merge(config, lease))
        result = Result()
        for seen in observed:
            compare(seen, _lake(config, database, seen.table.name), result)
        return Run(server.kind.name, types, tuple(tables), result)


@contextmanager
def _database(server: Server, text_step: int) -> Iterator[tuple[catalog.Catalog, Sequence[Table], str]]:
    """Creates a database with the tables of the matrix, and drops it at the end."""
    database = f"matrix_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE `{database}`")
    try:
        with server.connect() as connection:
            types = catalog.read_catalog(connection, database)
            tables = plan.tables(connection, types, text_step=text_step)
            workload.create(connection, database, tables)
        yield types, tables, database
    finally:
        server.execute(f"DROP DATABASE `{database}`")


def _configured(server: Server, folder: Path, database: str, spark: dict[str, object]) -> DestinationConfig:
    scheme = server.url.partition(":")[0]
    folder.mkdir(parents=True, exist_ok=True)
    password = folder / "password"
    password.touch(mode=0o600)
    password.write_text(PASSWORD)
    content = {
        "source": {
            "url": f"{scheme}://{USER}@{HOST}:{server.port}",
            "password_file": str(password),
            "server_id": 1000 + secrets.randbelow(2**31 - 1000),
            "start": "now",
        },
        "tables": {"include": [f"{database}\\..*"]},
        "store": {"path": str(folder / "store")},
        "meta": {"path": str(folder / "meta")},
        "apply": {"mode": "append", "target": str(folder / "lake")},
        "batch": {"max_wait_s": 0},
        "spark": spark,
    }
    file = folder / "conf" / "matrix.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load(file)


def _lake(config: DestinationConfig, database: str, table: str) -> pa.Table:
    """Reads a Delta table in the order of the changes."""
    delta = DeltaTable(table_path(config.apply.target, database, table))
    rows = QueryBuilder().register("t", delta).execute("SELECT * FROM t ORDER BY _seq, _row")
    return pa.table(rows)
