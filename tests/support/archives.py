"""A destination with an archive, filled without a server; and an archive that is killed at a chosen operation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from cdc.binlog import events
from cdc.binlog.positions import split_seq
from cdc.config import DestinationConfig, parse
from cdc.copies.archive.objects import LocalObjects
from cdc.copies.archive.states import Archive
from cdc.copies.archive.writer import Archiver
from cdc.meta import SourceIdentity
from cdc.meta.file import FileMeta
from cdc.store.formats.archive_record import ArchiveRecord
from cdc.store.formats.layout import list_segments
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.configurations import document

SEGMENT_BYTES = 2000
IDENTITY = SourceIdentity(server_uuid="1" * 36, flavor="mysql", base_name="binlog", epoch=0)


class GoingOn(Filler):
    """Goes on behind the store's last transaction, as capture does, also if its last segment is full."""

    def format_description(self, event: bytes, description: events.FormatDescription) -> None:
        assert self._framer is not None
        pos = max(split_seq(self.store.last_seq or 0).offset, self._framer.source_pos)
        self._framer.start_output(self.store.begin(0, "binlog.000001", pos, event, 1), self._segment_bytes)


class KilledError(BaseException):
    """Stands for SIGKILL: nothing in Towpath catches it."""


@dataclass
class Host:
    """A machine with a store and a meta, and the archive that it shares with others."""

    folder: Path
    archive_folder: Path
    config: DestinationConfig
    log: BinlogBuilder

    @property
    def store(self) -> Path:
        return self.config.store.path

    def fill(self, transactions: int, *, first: int = 0) -> None:
        """Appends transactions, several to a segment; the last segment stays open."""
        for n in range(first, first + transactions):
            if n % 20 == 3:
                self.log.ddl(f"ALTER TABLE orders ADD c{n} INT")
            self.log.transaction("shop", "orders" if n % 2 else "items", [n] * (n % 7 + 1))
        filler = GoingOn(self.store, segment_bytes=SEGMENT_BYTES)
        filler.put(self.log)
        filler.close()

    def ack(self, seq: int) -> None:
        """Moves the cursor of the subscriber ``apply``."""
        with FileMeta(self.config.meta.path, self.config.name) as meta:
            if meta.source() is None:
                meta.bind_source(IDENTITY)
            if "apply" not in meta.subscriptions():
                meta.subscribe("apply")
            meta.update_cursor("apply", seq)

    def upload(self) -> ArchiveRecord:
        """Runs a new process that copies everything."""
        return Archiver(self.config).run(everything=True)

    def archive(self) -> Archive:
        return Archive(self.config)

    def names(self) -> list[str]:
        """The names of the store's segments."""
        return [path.name for path in list_segments(self.store)]

    def archived(self) -> list[str]:
        newest = self.archive().newest()
        return [] if newest is None else [segment.name for segment in newest.segments]


def make_host(folder: Path, archive: Path, **more: Any) -> Host:
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "store__path": str(folder / "store"),
        "meta__path": str(folder / "meta"),
        "apply__target": str(folder / "lake"),
        "store__archive": {"url": f"file://{archive}"},
        **more,
    }
    config = parse(document(**values), folder / "conf" / "shop.yaml")
    return Host(folder, archive, config, BinlogBuilder())


def copied(host: Host, folder: Path) -> Host:
    """Returns another machine with a copy of a machine's store and meta."""
    other = make_host(folder, host.archive_folder)
    shutil.copytree(host.store, other.store)
    if host.config.meta.path.exists():
        shutil.copytree(host.config.meta.path, other.config.meta.path)
    other.log = host.log
    return other


@contextmanager
def killed_at(operation: int, *, half: bool = False) -> Iterator[list[str]]:
    """Kills the process before the archive's operation of this number, from 0; with ``half``, after a part of what it
    writes. Yields the operations so far."""
    done: list[str] = []

    def counted(name: str) -> Any:
        real = getattr(LocalObjects, name)

        def call(self: LocalObjects, *args: Any) -> Any:
            done.append(name)
            if len(done) - 1 == operation:
                raise KilledError
            return real(self, *args)

        return call

    real_written = LocalObjects._written

    def written(self: LocalObjects, path: Path, chunks: Iterator[bytes]) -> Path:
        if half and len(done) == operation:
            data = b"".join(chunks)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.0.new").write_bytes(data[: len(data) // 2])
            raise KilledError
        return real_written(self, path, chunks)

    names = ("names", "read", "create", "_write", "remove", "_open")
    with patch.multiple(LocalObjects, **{name: counted(name) for name in names}, _written=written):
        yield done
