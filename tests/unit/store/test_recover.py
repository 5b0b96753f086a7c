"""Recovery: checkpoint, abort marker, and what a writer verifies; failing disks; a power cut at every moment."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import CdcError, DamagedError, StorageError, VersionError
from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, Entries, EntryFlag
from cdc.binlog.gtids import GtidSet
from cdc.binlog.positions import make_seq, split_seq
from cdc.capture.proof import read_store_end
from cdc.disk import files
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta.file import FileMeta
from cdc.store.formats.checkpoint import SIZE, Checkpoint, parse, read_checkpoint, was_aborted
from cdc.store.formats.gtids import GtidCheckpoint, lacks_some, write_checkpoint
from cdc.store.formats.index import IndexFile, make_header, read_entries, seal
from cdc.store.formats.layout import index_path, list_segments, segment_name, segment_start
from cdc.store.reader.check import check_files
from cdc.store.reader.reader import StoreReader
from cdc.store.recovery import recover
from cdc.store.recovery.recover import Verification
from cdc.store.writer.log import RelayLog
from cdc.store.writer.segment import SegmentWriter
from cdc.testing.faults import FaultyFiles
from cdc.testing.transactions import make_transactions
from tests.support.unit_store import fill, forget_checkpoint, reopen

GOLDEN = Path(__file__).parents[2] / "golden"
SMALL = 700
"""Size of a segment that holds two of the transactions below."""


def opened(path: Path, segment_bytes: int = 1 << 20) -> TransactionLog:
    return TransactionLog(path, destination="shop", segment_bytes=segment_bytes)


def seqs(path: Path) -> list[int]:
    return [int(s) for segment in list_segments(path) for s in read_entries(segment)["seq"]]


def numbers(transactions: list[Transaction]) -> list[int]:
    return [t.seq for t in transactions]


@pytest.fixture(scope="module")
def transactions() -> list[Transaction]:
    return make_transactions(8, rows=1)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the segments that recovery reads."""
    seen: list[str] = []
    real = recover.verify

    def verify(segment: Path, number: Callable[[str], int]) -> Verification:
        seen.append(segment.name)
        return real(segment, number)

    monkeypatch.setattr(recover, "verify", verify)
    return seen


# --- the checkpoint file


@pytest.mark.rule("rocketmq-log-32")
def test_its_fields_come_back() -> None:
    note = Checkpoint(segment_name(1, 2, 3), 1 << 40, 1 << 33, 1 << 62, 1_700_000_000_000_000, 70, finished=True)
    data = note.render()
    assert len(data) == SIZE and parse(data, "x") == note
    assert parse(Checkpoint("", 0, 0, 0, 0, 0).render(), "x").segment == ""


def test_the_golden_one_is_read() -> None:
    note = parse((GOLDEN / "checkpoint-v1").read_bytes(), "checkpoint-v1")
    assert note == Checkpoint(
        segment="000-0000002-00000000004.binlog",
        log_bytes=1064,
        index_bytes=896,
        seq=34359740429,
        time_us=1_795_260_000_000_000,
        tables=2,
        finished=False,
    )


def test_a_newer_one_is_refused(tmp_path: Path, transactions: list[Transaction]) -> None:
    import zlib

    with opened_and_closed(tmp_path) as log:
        log.put(transactions)
    data = bytearray((tmp_path / "checkpoint").read_bytes() + bytes(64))
    data[4:8] = (2).to_bytes(2, "little") + len(data).to_bytes(2, "little")
    data[-4:] = zlib.crc32(bytes(data[:-4])).to_bytes(4, "little")
    (tmp_path / "checkpoint").write_bytes(bytes(data))
    with pytest.raises(VersionError, match=r"version 2.*knows 1"):
        opened(tmp_path)
    assert (tmp_path / "checkpoint").read_bytes() == bytes(data) and not was_aborted(tmp_path)


class opened_and_closed:  # noqa: N801
    """A writer for one block."""

    def __init__(self, path: Path, segment_bytes: int = 1 << 20) -> None:
        self.log = opened(path, segment_bytes)

    def __enter__(self) -> TransactionLog:
        return self.log

    def __exit__(self, *error: object) -> None:
        self.log.close()


# --- clean stop and crash


@pytest.mark.rule("rocketmq-log-1", "rocketmq-log-31")
def test_a_clean_stop_is_known_by_the_missing_abort(tmp_path: Path, transactions: list[Transaction]) -> None:
    log = opened(tmp_path)
    assert was_aborted(tmp_path)
    log.put(transactions)
    assert was_aborted(tmp_path)
    log.close()
    assert not was_aborted(tmp_path)
    note = read_checkpoint(tmp_path)
    (segment,) = list_segments(tmp_path)
    assert note is not None
    assert (note.segment, note.log_bytes) == (segment.name, segment.stat().st_size)
    assert note.index_bytes == index_path(segment).stat().st_size
    assert (note.seq, note.tables, note.finished) == (transactions[-1].seq, 1, False)


@pytest.mark.rule("rocketmq-log-37")
def test_after_a_clean_stop_nothing_is_read(tmp_path: Path, transactions: list[Transaction], looks: list[str]) -> None:
    with opened_and_closed(tmp_path, SMALL) as log:
        for transaction in transactions:
            log.put([transaction])
    assert len(list_segments(tmp_path)) > 2
    with opened_and_closed(tmp_path, SMALL) as log:
        assert log.last_seq == transactions[-1].seq
    assert looks == []


@pytest.mark.rule("rocketmq-log-32")
def test_after_a_crash_only_what_follows_the_checkpoint_is_read(
    tmp_path: Path, transactions: list[Transaction], looks: list[str]
) -> None:
    log = opened(tmp_path / "live", SMALL)
    for transaction in transactions:
        log.put([transaction])
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log.close()
    segments = list_segments(tmp_path / "crashed")
    assert len(segments) >= 3 and was_aborted(tmp_path / "crashed")
    opened(tmp_path / "crashed", SMALL).close()
    assert looks == [segments[-1].name]
    assert seqs(tmp_path / "crashed") == numbers(transactions)


def test_a_store_without_checkpoint_opens_and_gets_one(tmp_path: Path, looks: list[str]) -> None:
    shutil.copytree(GOLDEN / "store-v1", tmp_path / "store")
    opened(tmp_path / "store").close()
    assert len(looks) == 2 and read_checkpoint(tmp_path / "store") is not None
    looks.clear()
    opened(tmp_path / "store").close()
    assert looks == []


def test_opening_a_large_store_after_a_clean_stop(tmp_path: Path, transactions: list[Transaction]) -> None:
    """400 segments of 250,000 entries: 12.8 GB of indexes, of which little is read (the files have holes)."""
    with opened_and_closed(tmp_path) as log:
        log.put(transactions)
    (first,) = list_segments(tmp_path)
    head = first.read_bytes()[: int(read_entries(first)["offset"][0])]
    per, count, length = 250_000, 400, 300
    entry = np.zeros(1, dtype=ENTRY)
    entry["length"], entry["events"], entry["offset"] = length, 5, len(head) + (per - 1) * length
    for n in range(2, count + 1):
        segment = first.with_name(segment_name(0, n, 4))
        entry["seq"] = n << 34 | 1 << 20
        for path, begin, end, size in (
            (segment, head, b"", len(head) + per * length),
            (index_path(segment), make_header(), seal(entry), HEADER_SIZE + per * ENTRY_SIZE),
        ):
            with path.open("wb") as file:
                file.write(begin)
                file.seek(size - len(end))
                file.write(end)
                file.truncate(size)
    note = read_checkpoint(tmp_path)
    assert note is not None
    last = Checkpoint(
        segment.name, len(head) + per * length, HEADER_SIZE + per * ENTRY_SIZE, int(entry["seq"][0]), 1, 1
    )
    (tmp_path / "checkpoint").write_bytes(last.render())
    began = time.process_time()  # of the processor, which other processes do not lengthen
    log = opened(tmp_path)
    took_s = time.process_time() - began
    assert log.last_seq == last.seq
    log.close()
    assert took_s < 5.0, f"{took_s:.3f} s"


# --- missing files


def test_a_missing_newest_segment_is_named(tmp_path: Path, transactions: list[Transaction]) -> None:
    with opened_and_closed(tmp_path, SMALL) as log:
        for transaction in transactions:
            log.put([transaction])
    newest = list_segments(tmp_path)[-1]
    newest.unlink()
    index_path(newest).unlink()
    with pytest.raises(DamagedError, match=f"{newest.name} is missing"):
        opened(tmp_path)
    (tmp_path / "checkpoint").unlink()  # on purpose
    opened(tmp_path, SMALL).close()
    assert seqs(tmp_path) == numbers(transactions)[: len(seqs(tmp_path))]


def test_lost_tables_are_noticed_without_reading_indexes(tmp_path: Path, transactions: list[Transaction]) -> None:
    with opened_and_closed(tmp_path) as log:
        log.put(transactions)
    (tmp_path / "tables.json").unlink()
    with pytest.raises(DamagedError, match="names 0 tables"):
        opened(tmp_path)
    for segment in list_segments(tmp_path):
        index_path(segment).unlink()
    opened(tmp_path).close()
    assert seqs(tmp_path) == numbers(transactions)


def test_a_segment_behind_an_unfinished_one_is_not_kept(tmp_path: Path, transactions: list[Transaction]) -> None:
    """After a power cut between the two, the end of the first segment never reached the disk, and the beginning of the
    second did. Keeping the second would leave a gap that nobody notices."""
    whole = tmp_path / "whole"
    with opened_and_closed(whole, SMALL) as log:
        log.put(transactions[:1])
    shutil.copy(whole / "checkpoint", tmp_path / "checkpoint")
    with opened_and_closed(whole, SMALL) as log:
        for transaction in transactions[1:4]:
            log.put([transaction])
    shutil.copy(tmp_path / "checkpoint", whole / "checkpoint")  # nothing newer was written
    first, second = list_segments(whole)
    end = int(read_entries(first)["offset"][0] + read_entries(first)["length"][0])
    os.truncate(first, end)
    os.truncate(index_path(first), HEADER_SIZE + ENTRY_SIZE)
    os.truncate(index_path(second), HEADER_SIZE)
    opened(whole, SMALL).close()
    assert list_segments(whole) == [first]
    assert seqs(whole) == numbers(transactions[:1])


def test_a_segment_behind_a_finished_one_is_kept(tmp_path: Path, transactions: list[Transaction]) -> None:
    """The segment's index did not reach the disk, but the checkpoint says that nothing is missing before it."""
    log = opened(tmp_path / "live", SMALL)
    for transaction in transactions[:4]:
        log.put([transaction])
    shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    log.close()
    first, second = list_segments(tmp_path / "crashed")
    note = read_checkpoint(tmp_path / "crashed")
    assert note is not None and (note.segment, note.finished) == (first.name, True)
    index_path(second).unlink()
    opened(tmp_path / "crashed", SMALL).close()
    assert seqs(tmp_path / "crashed") == numbers(transactions[:4])


class Rotating:
    """A relay log that takes a source's files, and is copied as a kill leaves it."""

    def __init__(self, path: Path, transactions: list[Transaction]) -> None:
        self.path = path
        self._transactions = transactions
        self.log = RelayLog(path, destination="shop", segment_bytes=1 << 20)

    def begin(self, file: int, pos: int) -> int:
        source = self._transactions[0].source
        return self.log.begin(0, f"binlog.{file:06}", pos, source.format_description, 1)

    def position(self, file: int, pos: int) -> None:
        """Publishes the position, behind which nothing was captured."""
        self._publish(np.zeros(1, ENTRY), make_seq(0, file, pos), flags=EntryFlag.POSITION)

    def put(self, number: int, offset: int) -> int:
        """Publishes a transaction at an offset in the segment. Returns the offset behind it."""
        transaction = self._transactions[number]
        self.log.tables.number(transaction.tables[0])
        self.log.append(memoryview(transaction.data))
        self._publish(transaction.entry.copy(), transaction.seq, offset=offset)
        return offset + len(transaction.data)

    def half(self, number: int) -> None:
        self.log.append(memoryview(self._transactions[number].data)[:50])

    def _publish(self, entry: Entries, seq: int, **fields: int) -> None:
        for key, value in {"seq": seq, **fields}.items():
            entry[key] = value
        self.log.publish(entry)
        self.log.flush()

    def killed(self) -> Rotating:
        """Returns the log as a new process opens it."""
        self.log.flush()
        copied = self.path.with_name(f"{self.path.name}-killed")
        shutil.copytree(self.path, copied)
        self.log.close()
        return Rotating(copied, self._transactions)

    def starts(self) -> list[tuple[int, int]]:
        """Returns the file number and the position in the name of each segment."""
        parts = (split_seq(segment_start(segment) or 0) for segment in list_segments(self.path))
        return [(part.file_number, part.offset) for part in parts]


def test_a_kill_right_after_a_rotation_from_a_file_without_captured_changes(
    tmp_path: Path, transactions: list[Transaction]
) -> None:
    """The store has nothing of the file but its beginning, where capture goes on; the next file's segment is there."""
    running = Rotating(tmp_path / "store", transactions)
    running.begin(1, 4)
    running.position(1, 4)
    running.begin(2, 4)
    assert running.starts() == [(1, 4), (2, 4)]
    for _ in range(3):
        running = running.killed()
        assert running.starts() == [(1, 4)]
        assert running.log.last_seq == make_seq(0, 1, 4)
        offset = running.begin(1, 4)
        assert running.begin(1, 4) == offset  # a new connection
        assert running.starts() == [(1, 4), (1, 5)]
    offset = running.put(0, offset)
    end = read_store_end(running.path)
    assert end is not None and end.transaction is not None
    assert end.transaction.after_pos == 4  # from here the source is asked for it again, and its name says 5
    assert check_files(running.path).faults == []
    running.put(1, offset)
    for file in (2, 3):
        running.begin(file, 4)
        running.position(file, 4)
    running = running.killed()
    assert seqs(running.path) == numbers(transactions[:2])
    expected = [make_seq(0, 1, 4), *seqs(running.path), make_seq(0, 2, 4), make_seq(0, 3, 4)]
    assert [int(entry["seq"]) for part in StoreReader(running.path).all_entries() for entry in part] == expected
    running.log.close()


def test_gtids_of_positions_whose_entries_are_lost(tmp_path: Path, transactions: list[Transaction]) -> None:
    """A kill between the segment and its index: the transactions are found in the segment, positions are not."""
    running = Rotating(tmp_path / "store", transactions)
    end = running.put(0, running.begin(1, 4))
    write_checkpoint(running.path, "mysql", GtidCheckpoint(transactions[0].seq, GtidSet()))
    running.log.flush()
    before = index_path(list_segments(running.path)[-1]).read_bytes()
    running = running.killed()
    assert not lacks_some(running.path)  # the index has all that the segment has
    running.put(1, end)
    running.log.flush()
    shutil.copytree(running.path, tmp_path / "torn")
    running.log.close()
    index_path(list_segments(tmp_path / "torn")[-1]).write_bytes(before)
    (tmp_path / "torn" / "checkpoint").unlink()
    torn = Rotating(tmp_path / "torn", transactions)
    assert seqs(torn.path) == numbers(transactions[:2]) and lacks_some(torn.path)
    torn.log.close()


def test_a_second_kill_in_a_segment_that_was_begun_before_an_unused_one(
    tmp_path: Path, transactions: list[Transaction]
) -> None:
    """The unused segment of the next file is removed: what the second kill leaves is then at the very end."""
    first, second = (split_seq(transaction.seq).offset for transaction in transactions[:2])
    running = Rotating(tmp_path / "store", transactions)
    running.put(0, running.begin(1, 4))
    running.begin(2, 4)
    running = running.killed()
    running.put(1, running.begin(1, first))
    running.half(2)
    running = running.killed()
    assert running.starts() == [(1, 4), (1, first)]
    running.put(2, running.begin(1, second))
    running.log.close()
    assert seqs(running.path) == numbers(transactions[:3])


# --- failing disks


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyFiles]:
    faulty = FaultyFiles(tmp_path)
    with files.use(faulty):
        yield faulty


def close_quietly(log: TransactionLog) -> None:
    """Closes a store that has failed, which may raise the error once more."""
    with suppress(StorageError):
        log.close()


def after_power_cut(faulty: FaultyFiles, path: Path, **kept: int) -> list[int]:
    """Cuts the power, opens the store as the machine finds it, and returns the seqs in it."""
    faulty.power_cut(**kept)
    with files.use(files.Files()):
        opened(path, SMALL).close()
        return seqs(path)


@pytest.mark.parametrize("operation", ["fdatasync", "write"])
def test_a_failed_flush_or_write_is_final(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction], operation: str
) -> None:
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions[:2])
    faulty.fail(
        "fdatasync" if operation == "fdatasync" else "write", name="*.binlog" if operation == "fdatasync" else "*.index"
    )
    with pytest.raises(StorageError, match="Input/output error"):
        log.put(transactions[2:4])
    for call in (lambda: log.put(transactions[4:]), log.flush):
        with pytest.raises(StorageError, match="Input/output error"):
            call()
    close_quietly(log)
    assert was_aborted(store)
    opened(store).close()
    assert seqs(store)[:2] == numbers(transactions[:2])


@pytest.mark.parametrize("seed", range(12))
def test_after_a_failed_flush_the_page_cache_is_not_believed(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction], seed: int
) -> None:
    """The bytes of the failed flush are in the page cache, which takes them for written. A writer that reopens the store
    in the same boot must not acknowledge them without writing them again."""
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions[:2])
    faulty.fail("fdatasync", name="*.binlog")
    faulty.fail("ftruncate")  # nor could they be cut off
    with pytest.raises(StorageError):
        log.put(transactions[2:4])
    close_quietly(log)
    log = opened(store)
    acknowledged = seqs(store)
    log.put(transactions[4:6])
    close_quietly(log)
    stored = after_power_cut(faulty, store, seed=seed) if seed else after_power_cut(faulty, store)
    expected = sorted({*acknowledged, *numbers(transactions[4:6])})
    assert stored == expected


def test_an_index_that_could_not_be_flushed_is_written_again(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction]
) -> None:
    """Its entries are in the page cache, which takes them for written: the next checkpoint must not cover them before
    they are written again."""
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions[:4])
    faulty.fail("fdatasync", name="*.index")
    with pytest.raises(StorageError, match=r"index.*Input/output error"):
        log.close()
    assert was_aborted(store)
    opened(store).close()
    faulty.power_cut()
    with files.use(files.Files()):
        (segment,) = list_segments(store)
        assert IndexFile(segment).is_whole() and seqs(store) == numbers(transactions[:4])


def test_a_segment_writer_refuses_everything_after_a_failed_flush(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction]
) -> None:
    (tmp_path / "segments").mkdir()
    segment = SegmentWriter.create(tmp_path / "segments" / segment_name(0, 1, 4), bytes(100), "binlog.000001")
    segment.append(memoryview(b"x" * 50))
    faulty.fail("fdatasync")
    with pytest.raises(StorageError):
        segment.sync()
    for call in (
        segment.sync,
        segment.sync_index,
        lambda: segment.append(memoryview(b"y")),
        lambda: segment.publish(transactions[0].entry),
        lambda: segment.truncate(100),
        lambda: segment.set_statement_end(100, 30),
    ):
        with pytest.raises(StorageError, match="Input/output error"):
            call()
    segment.close()


@pytest.mark.parametrize("room", [0, 1, 100, 230, 350, 500])
def test_a_full_disk_leaves_the_segment_as_it_was(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction], room: int
) -> None:
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions[:2])
    (segment,) = list_segments(store)
    size = segment.stat().st_size
    faulty.limit_space(room)
    with pytest.raises(StorageError, match="No space left"):
        log.put(transactions[2:6])
    assert seqs(store) == numbers(transactions[:2])
    if room < sum(len(t.data) for t in transactions[2:6]):
        assert segment.stat().st_size == size
    close_quietly(log)
    faulty.limit_space(None)
    with opened_and_closed(store) as reopened:
        reopened.put(transactions)
    assert seqs(store) == numbers(transactions)


def test_a_full_disk_at_the_close_and_at_the_opening(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction]
) -> None:
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions)
    faulty.limit_space(50)
    with pytest.raises(StorageError, match=r"checkpoint.*No space left.*Free some space"):
        log.close()
    assert was_aborted(store)
    with pytest.raises(StorageError, match="No space left"):
        opened(store)
    faulty.limit_space(None)
    opened(store).close()
    assert seqs(store) == numbers(transactions) and not was_aborted(store)


def test_short_writes_are_completed(tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction]) -> None:
    faulty.write_short(7)
    store = tmp_path / "store"
    with opened_and_closed(store, SMALL) as log:
        for transaction in transactions:
            log.put([transaction])
    FileMeta(tmp_path / "meta", "shop").subscribe("apply", None)
    faulty.write_short(None)
    assert seqs(store) == numbers(transactions)
    assert FileMeta(tmp_path / "meta", "shop").subscriptions().keys() == {"apply"}
    assert read_checkpoint(store) is not None


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("pread", "*.binlog"),
        ("read_file", "*.index"),
        ("read_file", "checkpoint"),
        ("read_file", "tables.json"),
        ("read_file", "store.json"),
    ],
)
def test_a_disk_that_cannot_read_is_a_sentence(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction], operation: str, name: str
) -> None:
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions)
    faulty.fail("fdatasync")  # so that it does not end in order
    close_quietly(log)
    faulty.fail("pread" if operation == "pread" else "read_file", name=name)
    with pytest.raises(StorageError, match="Input/output error"):
        opened(store)
    opened(store).close()
    assert seqs(store) == numbers(transactions)


def test_a_meta_that_cannot_be_read_is_a_sentence_and_stays(tmp_path: Path, faulty: FaultyFiles) -> None:
    meta = FileMeta(tmp_path / "meta", "shop")
    meta.subscribe("apply", "1")
    before = meta.file.read_bytes()
    for call in (meta.subscriptions, lambda: meta.subscribe("apply", "2"), lambda: meta.update_cursor("apply", 5)):
        faulty.fail("read_file", name="meta.json")
        with pytest.raises(StorageError, match=r"meta\.json.*Input/output error"):
            call()
    assert meta.file.read_bytes() == before and meta.subscriptions()["apply"].filter == "1"


def test_a_rename_of_the_checkpoint_that_never_reached_the_disk(
    tmp_path: Path, faulty: FaultyFiles, transactions: list[Transaction]
) -> None:
    """The machine dies between the rename and the flush of its folder. The previous checkpoint, which covers less, and
    the abort marker are there; nothing is missing."""
    store = tmp_path / "store"
    log = opened(store)
    log.put(transactions[:2])
    old = (store / "checkpoint").read_bytes()
    faulty.fail("sync_folder", name="store")
    with pytest.raises(StorageError, match="Input/output error"):
        log.close()
    assert (store / "checkpoint").read_bytes() != old, "the rename is visible"
    faulty.power_cut()
    with files.use(files.Files()):
        assert (store / "checkpoint").read_bytes() == old and was_aborted(store)
        with opened_and_closed(store) as reopened:
            assert reopened.last_seq == transactions[1].seq
            reopened.put(transactions)
    assert seqs(store) == numbers(transactions)


def test_a_rename_of_the_meta_that_never_reached_the_disk(tmp_path: Path, faulty: FaultyFiles) -> None:
    """A call that did not return is undone as a whole; one that returned before is not."""
    meta = FileMeta(tmp_path / "meta", "shop")
    meta.subscribe("apply", None)
    meta.update_cursor("apply", 5)
    faulty.fail("sync_folder", name="meta")
    with pytest.raises(StorageError, match="Input/output error"):
        meta.update_cursor("apply", 9)
    assert meta.cursor("apply") == 9, "the rename is visible"
    faulty.power_cut()
    with files.use(files.Files()):
        reopened = FileMeta(tmp_path / "meta", "shop")
        assert reopened.cursor("apply") == 5
        reopened.update_cursor("apply", 9)
        assert reopened.cursor("apply") == 9


@pytest.mark.parametrize("kind", ["meta", "manifest", "checkpoint"])
@pytest.mark.parametrize("fault", ["write", "fsync", "replace", "space", "sync_folder", "power"])
def test_a_file_that_is_replaced_is_the_old_or_the_new_one(
    tmp_path: Path, faulty: FaultyFiles, kind: str, fault: str
) -> None:
    """If the call fails, the old content is there; if it returned, the new one, whatever happens next."""
    manifest = load_manifest(GOLDEN / "manifest-v1.json")
    meta, manifests, store = FileMeta(tmp_path / "meta", "shop"), ManifestFiles(tmp_path / "meta"), tmp_path / "store"

    def change(value: int) -> None:
        if kind == "meta":
            meta.subscribe("apply", str(value))
        elif kind == "manifest":
            manifests.save(manifest.model_copy(update={"bytes": value}))
        else:
            from cdc.store.formats.checkpoint import CheckpointWriter

            store.mkdir(exist_ok=True)
            CheckpointWriter(store, lambda: value).opened(None, 0, empty=False, finished=False)

    def stored_number() -> int:
        if kind == "meta":
            return int(meta.subscriptions()["apply"].filter or 0)
        if kind == "manifest":
            return load_manifest(manifests.path(manifest.subscriber, manifest.batch)).bytes
        note = read_checkpoint(store)
        assert note is not None
        return note.tables

    change(1)
    if fault == "power":
        change(2)
    else:
        if fault == "space":
            faulty.limit_space(20)
        else:
            faulty.fail("write" if fault == "write" else "fsync" if fault == "fsync" else "replace" if fault == "replace" else "sync_folder")  # fmt: skip
        with pytest.raises(StorageError):
            change(2)
        if fault != "sync_folder":
            assert stored_number() == 1
    faulty.power_cut()
    with files.use(files.Files()):
        assert stored_number() == (2 if fault == "power" else 1)


# --- the power cut at every moment


def work(store: Path, transactions: list[Transaction], acknowledged: list[int]) -> None:
    """Fills several segments, over two openings, and records what was acknowledged."""
    for part in (transactions[:5], transactions[5:]):
        log = opened(store, SMALL)
        try:
            for transaction in part:
                log.put([transaction])
                acknowledged.append(transaction.seq)
        finally:
            close_quietly(log)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory, transactions: list[Transaction]) -> int:
    """Returns the number of moments."""
    path = tmp_path_factory.mktemp("counted")
    counting = FaultyFiles(path)
    with files.use(counting):
        work(path / "store", transactions, [])
    return counting.changes


EVERY = 1 if os.environ.get("TOWPATH_EVERY_BYTE") else 3


@pytest.mark.rule("rocketmq-log-34")
@pytest.mark.parametrize("kept", ["nothing", "torn", "seed 1", "seed 2", "seed 3"])
def test_the_power_cut_at_every_operation(
    tmp_path: Path, transactions: list[Transaction], changes: int, kept: str
) -> None:
    """At any moment: the store opens, holds a prefix, lacks nothing that was acknowledged, and can be written to."""
    assert changes > 60
    for moment in range(len(kept) % EVERY, changes, EVERY):
        folder = tmp_path / str(moment)
        folder.mkdir()
        faulty = FaultyFiles(folder)
        faulty.power_off_at(moment)
        acknowledged: list[int] = []
        with files.use(faulty):
            try:
                work(folder / "store", transactions, acknowledged)
            except CdcError:
                assert faulty.off
            if kept == "torn":
                faulty.power_cut(keep_bytes=faulty.pending_bytes * 2 // 3)
            else:
                faulty.power_cut(seed=None if kept == "nothing" else 1000 * int(kept[-1]) + moment)
        log = opened(folder / "store", SMALL)
        stored = seqs(folder / "store")
        assert stored == numbers(transactions)[: len(stored)], f"cut at operation {moment}"
        assert len(stored) >= len(acknowledged), f"cut at operation {moment}: {len(acknowledged)} were acknowledged"
        log.put(transactions)
        log.close()
        assert seqs(folder / "store") == numbers(transactions), f"cut at operation {moment}"
        assert all(IndexFile(segment).is_whole() for segment in list_segments(folder / "store"))
        shutil.rmtree(folder)


@pytest.mark.rule("rocketmq-log-35")
def test_cut_below_what_was_acknowledged_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (segment,) = list_segments(tmp_path)
    with open(segment, "r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    with pytest.raises(DamagedError, match="acknowledged transactions"):
        reopen(tmp_path)


def test_damage_to_something_acknowledged_is_named(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    (segment,) = list_segments(tmp_path)
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    forget_checkpoint(tmp_path)  # after a clean stop it is believed, and whoever reads the bytes verifies them
    with pytest.raises(DamagedError, match=r"checksum.*Move this segment"):
        reopen(tmp_path)
    assert segment.read_bytes() == bytes(data)


@pytest.mark.rule("rocketmq-log-36")
def test_index_is_made_anew_from_the_log(tmp_path: Path) -> None:
    fill(tmp_path, 5, ddl_at=2)
    (segment,) = list_segments(tmp_path)
    before = np.array(IndexFile(segment).entries)
    index_path(segment).unlink()
    reopen(tmp_path)
    after = np.array(IndexFile(segment).entries)
    for name in before.dtype.names or ():
        if name not in ("store_time_us", "crc", "table_mask"):
            assert np.array_equal(before[name], after[name]), name


def test_newer_versions_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    document = (tmp_path / "store.json").read_text()
    (tmp_path / "store.json").write_text(document.replace('"version": 2', '"version": 3'))
    with pytest.raises(VersionError, match="version 3"):
        StoreReader(tmp_path)
