"""A destination with a store, a meta and a lake, made without a server; and processes that are killed at an operation."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from cdc.cli.main import main
from cdc.config import DestinationConfig, load
from cdc.lifecycle.move.link import Link
from cdc.meta import SourceIdentity
from cdc.meta.file import FileMeta
from cdc.source.server import replicas
from cdc.store.formats.layout import schemas_folder
from cdc.store.formats.state import Beginning, record_beginning
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.servers import Server
from cdc.testing.stores import Filler
from tests.support.unit_store import all_seqs

IDENTITY = SourceIdentity(server_uuid="1" * 36, flavor="mysql", base_name="binlog", epoch=0)
SEGMENT_BYTES = 2000
# A fork of this process would have no threads, which deltalake needs: so start from a clean process.
_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["cdc.cli.remove", "cdc.cli.move", "pyarrow", "tests.support.removals"])
_OPERATIONS = ("unlink", "rmdir", "rename", "replace", "mkdir", "remove", "link", "fsync")


@dataclass
class Place:
    """A machine with configurations."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "conf"

    def configure(self, name: str = "shop", **sections: Any) -> DestinationConfig:
        """Writes and loads a configuration; ``sections`` are merged into those of the base."""
        self.conf.mkdir(parents=True, exist_ok=True)
        document: dict[str, Any] = {
            "source": {"url": "mysql://t@127.0.0.1:1", "server_id": 7, "start": "earliest"},
            "tables": {"include": [r"shop\..*"]},
            "store": {"path": f"./data/{name}/store"},
            "meta": {"path": f"./data/{name}/meta"},
            "apply": {"target": "./lake"},
        }
        for section, values in sections.items():
            document[section] = {**document.get(section, {}), **values}
        (self.conf / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        return load(self.conf / f"{name}.yaml")

    def fill(self, config: DestinationConfig, transactions: int = 60) -> None:
        """Fills the store, and binds and subscribes the meta, as capture and apply do."""
        log = BinlogBuilder()
        for n in range(transactions):
            log.transaction("shop", "orders" if n % 2 else "items", [n] * (n % 7 + 1))
        filler = Filler(config.store.path, segment_bytes=SEGMENT_BYTES, destination=config.name)
        record_beginning(config.store.path, Beginning(0, "binlog.000001", 4, None, 1, "first start"))
        filler.put(log)
        filler.close()
        schemas_folder(config.store.path).joinpath("4.json").write_text('{"version": 1, "tables": {}, "unsure": {}}')
        with FileMeta(config.meta.path, config.name) as meta:
            meta.bind_source(IDENTITY)
            meta.subscribe("apply")
            meta.subscribe("audit")
            meta.update_cursor("apply", all_seqs(config.store.path)[transactions // 2])

    def table(self, name: str, properties: dict[str, str], target: str = "lake", delta_id: str = "") -> Path:
        """Makes a Delta table with a file of rows, as far as its log shows it."""
        folder = self.folder / target / name.replace(".", "/")
        (folder / "_delta_log").mkdir(parents=True)
        field = {"name": "id", "type": "integer", "nullable": True, "metadata": {}}
        schema = json.dumps({"type": "struct", "fields": [field]})
        actions = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": delta_id or name,
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": schema,
                    "partitionColumns": [],
                    "configuration": properties,
                    "createdTime": 1,
                }
            },
            {
                "add": {
                    "path": "part-0.parquet",
                    "partitionValues": {},
                    "size": 5,
                    "modificationTime": 1,
                    "dataChange": True,
                }
            },
        ]
        (folder / "part-0.parquet").write_bytes(b"rows.")
        lines = "".join(f"{json.dumps(action)}\n" for action in actions)
        (folder / "_delta_log" / f"{0:020d}.json").write_text(lines)
        return folder


def run_command(arguments: list[str], *, kill_at: int | None = None) -> int:
    """Runs ``cdc`` in a process of its own. Returns its exit code; -9 if it was killed by SIGKILL before its
    ``kill_at``-th change of a name, sync, or piece that it sends to another machine."""
    process = _PROCESSES.Process(target=_run, args=(arguments, kill_at))
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


def _run(arguments: list[str], kill_at: int | None) -> None:
    left = kill_at

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal left
            if left is not None:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    for name in _OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))
    Link._send = counted(Link._send)  # type: ignore[method-assign]
    os._exit(main(arguments))


def wait_for_server_id(server: Server, config: DestinationConfig) -> None:
    """Waits until the server has noticed that a capture has gone."""
    deadline = time.monotonic() + 60
    with server.connect() as connection:
        while any(replica.server_id == config.source.server_id for replica in replicas(connection)):
            assert time.monotonic() < deadline
            time.sleep(0.5)
