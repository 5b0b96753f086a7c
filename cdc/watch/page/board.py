"""Collects the status of many destinations, each in a thread of its own with a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdc.base.errors import CdcError
from cdc.base.log import get_logger, hide_password
from cdc.base.run_identity import RunIdentity
from cdc.batches.manifest import TableResult
from cdc.batches.manifest_files import ManifestFiles
from cdc.client import open_batches
from cdc.config import DestinationConfig, load
from cdc.config.memory import in_memory
from cdc.watch.last_merges import MOST_BATCHES, newest_acked
from cdc.watch.status import collect

WAIT_S = 10.0
"""The time that a page waits for the status of a destination."""
FRESH_S = 3.0
"""A status is collected again when it is older than this."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class AckedBatch:
    """A batch that was acked lately."""

    batch: int
    first_seq: int
    last_seq: int
    transactions: int
    rows: tuple[int, int, int]
    """The rows that were inserted, updated and deleted in all tables."""
    bytes: int
    acked_s: float
    """When it was acked, Unix time."""
    lag_s: float | None
    """The age of its first transaction then; None if the source gave it no time."""
    manifest: str
    """The path of its manifest, if it is on this machine; else empty."""
    run: RunIdentity | None = None
    """Who acked it; None if that is not known."""
    tables: Mapping[str, int] = field(default_factory=dict)
    """The rows that were inserted, updated and deleted, by table."""


@dataclass(frozen=True)
class BoardRow:
    """A destination on a page: its status, or the reason why there is none."""

    name: str
    config: DestinationConfig | None = None
    """None if the configuration cannot be loaded."""
    status: dict[str, Any] | None = None
    """The document that :func:`cdc.watch.status.collect` returns."""
    batches: list[AckedBatch] = field(default_factory=list)
    """The newest acked batches, oldest first; only if they were asked for."""
    error: str = ""


@dataclass
class _Look:
    """A look at a destination, under way or done."""

    began: float
    done: threading.Event = field(default_factory=threading.Event)
    row: BoardRow | None = None


class Board:
    """The status of the destinations of a folder. Safe to use from several threads.

    A look that has not ended is waited for, and not begun a second time: a disk that hangs costs one thread for each
    destination, however often a page is loaded.
    """

    def __init__(
        self,
        *,
        wait_s: float = WAIT_S,
        fresh_s: float = FRESH_S,
        collect: Callable[[DestinationConfig], dict[str, Any]] | None = None,
    ) -> None:
        self._wait_s, self._fresh_s, self._collect = wait_s, fresh_s, collect
        self._lock = threading.Lock()
        self._looks: dict[tuple[Path, bool], _Look] = {}

    def rows(self, files: Iterable[Path], *, batches: bool = False) -> list[BoardRow]:
        """Returns a row for each configuration file, in their order. ``batches``: also the newest acked batches."""
        looks = [(file, self._look(file, batches)) for file in files]
        deadline = time.monotonic() + self._wait_s
        rows = []
        for file, look in looks:
            look.done.wait(max(0.0, deadline - time.monotonic()))
            row = look.row
            if row is None:
                waited = time.monotonic() - look.began
                row = BoardRow(
                    file.stem,
                    error=f"no answer for {waited:.0f} s: the disk, the server of the store, or the lake hangs",
                )
            rows.append(row)
        return rows

    def _look(self, file: Path, batches: bool) -> _Look:
        with self._lock:
            look = self._looks.get((file, batches))
            now = time.monotonic()
            if look is not None and (not look.done.is_set() or now - look.began < self._fresh_s):
                return look
            look = self._looks[file, batches] = _Look(now)
            # A daemon: a look that hangs must not keep the process from ending.
            threading.Thread(
                target=self._run, args=(file, batches, look), name=f"status-{file.stem}", daemon=True
            ).start()
            return look

    def _run(self, file: Path, batches: bool, look: _Look) -> None:
        config = None
        try:
            config = in_memory(load(file))
            status = self._status(config)
            look.row = BoardRow(file.stem, config, status, newest_batches(config) if batches else [])
        except CdcError as error:
            look.row = BoardRow(file.stem, config, error=hide_password(str(error)))
        except Exception as error:  # noqa: BLE001 - the page shows the others, and says that this one failed
            _log.exception("status could not be collected", destination=file.stem)
            what = f"{type(error).__name__}: {error}"
            look.row = BoardRow(file.stem, config, error=hide_password(f"the status cannot be collected: {what}"))
        finally:
            look.done.set()

    def _status(self, config: DestinationConfig) -> dict[str, Any]:
        if self._collect is not None:
            return self._collect(config)

        return collect(config)


def newest_batches(config: DestinationConfig, most: int = MOST_BATCHES) -> list[AckedBatch]:
    """Returns the newest acked batches, oldest first. Raises DamagedError, StorageError, PeerUnavailableError."""
    from datetime import datetime

    batches = open_batches(config)
    files = ManifestFiles(config.meta.path) if config.store.kind == "file" else None
    acked_batches = []
    for manifest in newest_acked(batches, most):
        assert manifest.acked is not None
        acked_s = manifest.acked.time.timestamp()
        first = manifest.positions.first.time
        lag_s = None if first is None else max(0.0, acked_s - datetime.fromisoformat(first).timestamp())
        acked_batches.append(
            AckedBatch(
                batch=manifest.batch,
                first_seq=manifest.first_seq,
                last_seq=manifest.last_seq,
                transactions=manifest.transactions,
                rows=_rows(manifest.acked.tables),
                bytes=manifest.bytes,
                acked_s=acked_s,
                lag_s=lag_s,
                manifest="" if files is None else str(files.path("apply", manifest.batch)),
                run=manifest.acked.run or manifest.run,
                tables={table.table: table.inserted + table.updated + table.deleted for table in manifest.acked.tables},
            )
        )
    return acked_batches


def _rows(results: Iterable[TableResult]) -> tuple[int, int, int]:
    inserted = updated = deleted = 0
    for result in results:
        inserted += result.inserted
        updated += result.updated
        deleted += result.deleted
    return inserted, updated, deleted
