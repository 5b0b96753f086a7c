"""The store of a destination at a server. Its indexes are searched there; entries come as they are in the index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from cdc.base.errors import DamagedError
from cdc.batches.operations import remote
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, Entries, format_gtid
from cdc.binlog.positions import BinlogPosition, CommitPosition, make_file_name, split_seq
from cdc.binlog.sql.schemas import Schemas
from cdc.store.formats.index import first_bad
from cdc.store.formats.state import Beginning, CaptureState
from cdc.store.reader.reader import Backlog, StoreTotals
from cdc.store.reader.store import Store

if TYPE_CHECKING:
    from cdc.store.reader.batch_builder import TableFilter
    from cdc.wire.connection import Connection


class RemoteReader:
    """Implements :class:`~cdc.store.reader.store.Store` by asking the server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._base_name: str | None = None

    @property
    def place(self) -> str:
        return self.connection.place

    def _now(self) -> dict[str, Any]:
        description: dict[str, Any] = self.connection.call("store")
        self._base_name = description["base_name"]
        return description

    # --- beginning and end

    def exists(self) -> bool:
        return bool(self._now()["exists"])

    def beginning(self) -> Beginning | None:
        beginning = self._now()["beginning"]
        return None if beginning is None else Beginning(**beginning)

    def first_seq(self) -> int | None:
        seq: int | None = self.connection.call("totals")["first_seq"]
        return seq

    def removed_seq(self) -> int:
        return int(self._now()["removed_seq"])

    def last_seq(self) -> int | None:
        seq: int | None = self._now()["last_seq"]
        return seq

    def last_entry(self) -> np.void | None:
        return self.entry_at((1 << 63) - 1)

    require_kept = remote(Store.require_kept)

    def complete_until_us(self) -> int:
        return int(self._now()["complete_until_us"])

    def capture_state(self) -> CaptureState | None:
        state = self._now()["capture"]
        return None if state is None else CaptureState(**state)

    # --- entries

    def source_file(self, seq: int) -> str:
        return make_file_name(self._base_name or str(self._now()["base_name"]), split_seq(seq).file_number)

    def commit_position(self, entry: np.void) -> CommitPosition:
        seq = int(entry["seq"])
        position = BinlogPosition(self.source_file(seq), split_seq(seq).offset)
        return CommitPosition(position, format_gtid(entry), int(entry["commit_time_us"]))

    def entry_at(self, seq: int) -> np.void | None:
        entries = self._entries(self.connection.fetch("entry_at", {"seq": seq}))
        return entries[0] if len(entries) else None

    def all_entries(self, after_seq: int = 0, upto_seq: int | None = None) -> Iterator[Entries]:
        while True:
            data = self.connection.fetch("entries", {"after_seq": after_seq, "upto_seq": upto_seq})
            entries = self._entries(data)
            if not len(entries):
                return
            last = int(entries["seq"][-1])
            if last <= after_seq:
                raise DamagedError("the server sends the same entries again", place=self.place)
            yield entries
            after_seq = last

    def _entries(self, data: bytes) -> Entries:
        if len(data) % ENTRY_SIZE:
            raise DamagedError(f"the server sent {len(data)} bytes of index entries, not whole ones", place=self.place)
        entries = np.frombuffer(data, dtype=ENTRY)
        if first_bad(entries) >= 0:
            raise DamagedError("an index entry from the server fails its checksum", place=self.place)
        return entries

    # --- finding

    find_by_store_time = remote(Store.find_by_store_time)
    find_by_commit_time = remote(Store.find_by_commit_time)
    seq_before = remote(Store.seq_before)

    # --- stats

    def backlog(self, after_seq: int, table_filter: TableFilter | None = None) -> Backlog:
        asked = {"seq": after_seq} | ({} if table_filter is None else {"filter": table_filter.pattern})
        return Backlog(**self.connection.call("backlog", asked))

    def totals(self) -> StoreTotals:
        return StoreTotals(**self.connection.call("totals")["totals"])

    def disk(self) -> dict[str, Any] | None:
        """Returns the usage of the store's disk, as `cdc status --json` shows it."""
        disk: dict[str, Any] | None = self.connection.call("totals")["disk"]
        return disk

    def table_names(self) -> list[str]:
        return list(self._now()["tables"])

    def table_mask(self, table: str) -> int:
        names = self.table_names()
        return 1 << (names.index(table) & 63) if table in names else 0

    def segment_starts(self) -> list[int]:
        return list(self.connection.call("totals")["segment_starts"])

    def schemas(self, last_seq: int) -> tuple[int, Schemas] | None:
        return _schemas(self.connection.call("schemas", {"seq": last_seq}))

    def newest_schemas(self) -> tuple[int, Schemas] | None:
        return _schemas(self.connection.call("schemas"))

    check_files = remote(Store.check_files)


def _schemas(document: Any) -> tuple[int, Schemas] | None:
    return None if document is None else (int(document["seq"]), Schemas.model_validate(document["schemas"]))
