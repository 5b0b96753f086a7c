"""Helpers of the batch tests: a configuration, a store of numbers, a store of real segments, and a settable clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from cdc.base.errors import CutOffError
from cdc.batches.service import BatchService
from cdc.binlog.entry import EntryFlag
from cdc.binlog.file import rows_to_entries, scan
from cdc.binlog.gtids import Flavor
from cdc.binlog.positions import BinlogPosition, CommitPosition, make_file_name, make_seq, split_seq
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.config import DestinationConfig, load
from cdc.meta import SourceIdentity
from cdc.store.formats import layout
from cdc.store.formats.gtids import GtidCheckpoint
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.segment_header import make_segment_header
from cdc.store.formats.state import Beginning, CaptureState, TableNumbers
from cdc.store.reader.batch_builder import Limits, Range, Selection, TableFilter

GOLDEN_BINLOG = Path(__file__).parents[1] / "golden" / "mysql9-binlog.000007"
FIRST_TX, ROTATE_BYTES = 198, 44

IDENTITY = SourceIdentity(server_uuid="uuid-1", flavor="mysql", base_name="binlog", epoch=0, start_gtid=None)
TX_BYTES = 100
TX_TIME_US = 1_000_000


def make_config(folder: Path, name: str = "shop") -> DestinationConfig:
    """Writes and loads a configuration file below ``folder``."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    document = {
        "source": {"url": "mysql://t@127.0.0.1:1", "server_id": 7},
        "tables": {"include": [r"(shop|bat)\..*"]},
        "store": {"path": f"./{name}/store"},
        "meta": {"path": f"./{name}/meta"},
        "batch": {"max_transactions": 3, "max_wait_s": 0, "lease_s": 60},
        "apply": {"target": "./lake"},
    }
    (conf / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return load(conf / f"{name}.yaml")


@dataclass
class NumberStore:
    """A reader of transactions with the seqs 1, 2, 3 …; those in ``ddl`` are DDL statements."""

    last: int
    ddl: frozenset[int] = frozenset()
    asked: list[tuple[int, Limits]] = field(default_factory=list)
    complete_us: int = 0
    folder: Path = Path("/store")

    def complete_until_us(self) -> int:
        return self.complete_us

    begins: Beginning | None = None
    is_there: bool = True

    def exists(self) -> bool:
        return self.is_there

    def beginning(self) -> Beginning | None:
        """Returns a beginning that is not recorded: before the first transaction."""
        return self.begins or Beginning(0, "binlog.000001", 4, None, 0, "not recorded")

    def newest_schemas(self) -> tuple[int, Schemas] | None:
        return None

    def last_seq(self) -> int | None:
        return self.last or None

    def gtids_until(self, last_seq: int, flavor: Flavor, earlier: GtidCheckpoint | None = None) -> None:
        """Knows no GTIDs."""

    removed: int = 0

    def removed_seq(self) -> int:
        return self.removed

    def require_kept(self, after_seq: int) -> None:
        if after_seq < self.removed:
            raise CutOffError(f"the transactions behind {after_seq} were removed up to {self.removed}")

    def skippable_until(self, after_seq: int, table_filter: TableFilter | None = None) -> int:
        return after_seq

    def capture_state(self) -> CaptureState | None:
        return None

    def select(self, after_seq: int, limits: Limits, table_filter: TableFilter | None = None) -> Selection | None:
        self.asked.append((after_seq, limits))
        first, last = after_seq + 1, after_seq
        while last < self.last and last - after_seq < (limits.max_transactions or 1 << 60):
            if limits.until_us is not None and (last + 1) * TX_TIME_US >= limits.until_us:
                break
            if last + 1 in self.ddl:
                last = last + 1 if last == after_seq else last
                break
            last += 1
        if last < first:
            return None
        count = last - after_seq
        return Selection(
            first_seq=first,
            last_seq=last,
            transactions=count,
            row_events=2 * count,
            bytes=TX_BYTES * count,
            ddl=first in self.ddl,
            tables=("shop.orders",),
            ranges=(Range(self.folder / "000-0000000-00000000004.binlog", first * TX_BYTES, count * TX_BYTES),),
            first=self._place(first),
            last=self._place(last),
        )

    def schema_path(self, last_seq: int) -> Path | None:
        return self.folder / "schemas" / "0.json"

    def has_foreign_keys(self, after_seq: int, last_seq: int) -> bool:
        return False

    @staticmethod
    def _place(seq: int) -> CommitPosition:
        parts = split_seq(seq)
        return CommitPosition(
            BinlogPosition(make_file_name("binlog", parts.file_number), parts.offset), f"0-1-{seq}", seq * TX_TIME_US
        )


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now: datetime = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def make_service(config: DestinationConfig, store: NumberStore, clock: Clock | None = None) -> BatchService:
    """Returns a service whose meta is bound to a source."""
    service = BatchService(config, reader=store, clock=clock or (lambda: datetime.now(UTC)))
    service.meta.bind_source(IDENTITY)
    return service


def make_store(path: Path) -> Path:
    """Makes a store of one segment, and returns its path.

    The segment has the binlog of MySQL 9 for CREATE TABLE bat.o, four inserts, an update, ALTER TABLE and a delete.
    """
    layout.create(path, "shop")
    data = GOLDEN_BINLOG.read_bytes()
    size = int.from_bytes(data[13:17], "little")  # of the format description, which begins at byte 4
    begin = make_segment_header(data[4 : 4 + size], "binlog.000007", FIRST_TX, int.from_bytes(data[9:13], "little"))
    segment = layout.segments_folder(path) / layout.segment_name(0, 7, FIRST_TX)
    segment.write_bytes(begin + data[FIRST_TX:-ROTATE_BYTES])
    numbers = TableNumbers(path)
    scanned = scan(segment, number=lambda db, table: numbers.number(f"{db}.{table}"))
    entries = rows_to_entries(scanned.rows)
    # Like capture: a segment's first entry is its position, without a transaction and without a commit time.
    begins = np.zeros(1, dtype=entries.dtype)
    begins["seq"], begins["flags"], begins["store_time_us"] = make_seq(0, 7, FIRST_TX), EntryFlag.POSITION, 1
    layout.index_path(segment).write_bytes(make_header() + seal(np.concatenate([begins, entries])))
    Schemas(
        tables={"bat.o": TableSchema(columns=(), primary_key=()), "bat.empty": TableSchema(columns=(), primary_key=())}
    ).save(layout.schemas_folder(path) / "1.json")
    return segment
