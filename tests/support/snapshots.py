"""Reads whole tables as snapshots do, without files and positions, and destinations to take snapshots with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from cdc.config import DestinationConfig, load
from cdc.meta.state import SourceIdentity
from cdc.source.driver import close_now
from cdc.source.server import describe
from cdc.source.snapshot.columns import ColumnStats
from cdc.source.snapshot.records import ChunkRange
from cdc.source.snapshot.result_set import ResultSet
from cdc.source.snapshot.session import definition, open_session
from cdc.source.snapshot.table import TableReading
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.configurations import server_id_of

WHOLE = ChunkRange(0, 1, None, None, None)


def write_config(server: Server, folder: Path, include: str, **sections: Any) -> DestinationConfig:
    """Writes the configuration of a destination whose password is in a file, and loads it."""
    scheme = server.url.partition(":")[0]
    file = folder / "conf" / "shop.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    (folder / "password").write_text(PASSWORD)
    content: dict[str, Any] = {
        "source": {
            "url": f"{scheme}://{USER}@{HOST}:{server.port}",
            "password_file": str(folder / "password"),
            "server_id": server_id_of(file),
            "start": "now",
        },
        "tables": {"include": [include]},
        "store": {"path": str(folder / "store")},
        "meta": {"path": str(folder / "meta")},
        "apply": {"target": str(folder / "lake"), "mode": "append"},
    }
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return load(file)


def identity(server: Server) -> SourceIdentity:
    """The server as a meta knows it after the first capture."""
    with server.connect() as connection:
        info = describe(connection)
    return SourceIdentity(server_uuid=info.server_uuid, flavor=info.flavor, base_name="binlog", epoch=0)


def select(config: DestinationConfig, db: str, name: str) -> pa.Table:
    """Reads a table through the compiled reader, with the configured policies."""
    conn = open_session(config.source)
    try:
        schema, info = definition(conn, config.tables, db, name), describe(conn)
        reading = TableReading.of(config, db, name, schema, has_row_metadata=info.has_row_metadata)
        stats = ColumnStats()
        batches = [
            reading.batch(block, 0, stats) for block in ResultSet(conn, reading.select(WHOLE, None), reading.can_read)
        ]
        return pa.Table.from_batches(batches, reading.arrow_schema)
    finally:
        close_now(conn)


def selector(server: Server, database: str, folder: Path) -> Callable[[str], pa.Table]:
    """Returns a function that reads a table of a database, given by name."""
    config = write_config(server, folder, f"{re.escape(database)}\\..*")
    return lambda name: select(config, database, name)
