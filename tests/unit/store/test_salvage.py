"""A damaged segment in the middle: an error names it, and once the loss is accepted everything else is readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.base.errors import CdcError, DamagedError, LeaseHeldError, UsageError, VersionError
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.cli.main import main
from cdc.decode import decode_range
from cdc.event_store.transaction import Transaction
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.formats.missing import read_damaged, write_damaged
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.recovery.salvage import examine, salvage
from cdc.testing.transactions import make_transactions

COUNT = 9
BYTES = 1000
"""Size of a segment with four transactions."""


@pytest.fixture(scope="module")
def transactions() -> list[Transaction]:
    return make_transactions(COUNT + 2, rows=1)


@pytest.fixture
def store(tmp_path: Path, transactions: list[Transaction]) -> Path:
    """A store of three segments that was closed cleanly."""
    log = TransactionLog(tmp_path, destination="shop", segment_bytes=BYTES)
    for transaction in transactions[:COUNT]:
        log.put([transaction])
    log.close()
    assert [len(read_entries(s)) for s in list_segments(tmp_path)] == [4, 4, 1]
    return tmp_path


def flip(segment: Path, *entries: int) -> None:
    """Damages a byte in the middle of these transactions."""
    index_entries, data = read_entries(segment), bytearray(segment.read_bytes())
    for number in entries:
        data[int(index_entries["offset"][number]) + int(index_entries["length"][number]) // 2] ^= 4
    segment.write_bytes(data)


def values(store: Path, limits: Limits | None = None) -> list[int]:
    """Returns the one column of every row that readers get, batch by batch."""
    ids: list[int] = []
    reader, after = StoreReader(store), 0
    while (selection := reader.select(after, limits or Limits())) is not None:
        for part in selection.ranges:
            for batch in decode_range(*part, table="shop.orders"):
                ids += [row["id"] for row in batch.to_pylist()]
        after = selection.last_seq
    return ids


@pytest.mark.parametrize("damaged", [[0], [1], [3], [0, 1], [1, 3], [0, 1, 2, 3]])
@pytest.mark.parametrize("limits", [Limits(), Limits(max_transactions=2)])
def test_exactly_what_is_damaged_is_left_out(
    store: Path, transactions: list[Transaction], damaged: list[int], limits: Limits
) -> None:
    whole = values(store)
    assert len(whole) == COUNT
    middle = list_segments(store)[1]
    lost = [int(s) for s in read_entries(middle)["seq"][damaged]]
    flip(middle, *damaged)
    with pytest.raises(DamagedError, match=middle.name):
        values(store)
    made = salvage(store, middle.name)
    assert sum(loss.transactions or 0 for loss in made) == len(damaged)
    assert {loss.first_seq for loss in made} <= set(lost) and {loss.last_seq for loss in made} <= set(lost)
    assert {loss.tables for loss in made} == {("shop.orders",)} and {loss.how for loss in made} == {"passed over"}
    assert values(store, limits) == [v for n, v in enumerate(whole) if n - 4 not in damaged]
    assert read_damaged(store) == tuple(made)
    # And a writer goes on, also after a crash.
    (store / "checkpoint").unlink()
    log = TransactionLog(store, destination="shop", segment_bytes=BYTES)
    log.put(transactions[COUNT:])
    log.close()
    assert len(values(store, limits)) == COUNT + 2 - len(damaged)
    with pytest.raises(UsageError, match="no loss to accept"):
        salvage(store, middle.name)


def test_bytes_given_up_are_the_transactions_own(store: Path) -> None:
    middle = list_segments(store)[1]
    entries = read_entries(middle)
    flip(middle, 1, 2)
    (made,) = salvage(store, middle.name)
    assert made.offset == int(entries["offset"][1])
    assert made.length == int(entries["length"][1] + entries["length"][2])
    document = json.loads((store / "damaged.json").read_text())
    assert document["version"] == 1 and document["ranges"][0]["segment"] == middle.name


def test_with_a_damaged_index_what_can_be_told_is_kept(store: Path) -> None:
    """Transaction 2 and its entry are damaged, so nothing is known of it; the others are there."""
    whole = values(store)
    middle = list_segments(store)[1]
    flip(middle, 2)
    index = bytearray(index_path(middle).read_bytes())
    index[128 * 3 + 5] ^= 1
    index_path(middle).write_bytes(index)
    (made,) = salvage(store, middle.name)
    assert made.transactions is None
    assert values(store) == [v for n, v in enumerate(whole) if n != 6]


def test_a_damaged_head_gives_up_the_segment(store: Path) -> None:
    whole = values(store)
    middle = list_segments(store)[1]
    data = bytearray(middle.read_bytes())
    data[30] ^= 1
    middle.write_bytes(data)
    (made,) = salvage(store, middle.name)
    assert made.transactions == 4
    assert values(store) == whole[:4] + whole[8:]


def test_a_segment_that_lost_its_end(store: Path) -> None:
    whole = values(store)
    middle = list_segments(store)[1]
    entries = read_entries(middle)
    with middle.open("r+b") as file:
        file.truncate(int(entries["offset"][2]) + 10)
    with pytest.raises(DamagedError, match=f"acknowledged transactions.*--accept-loss {middle.name}"):
        TransactionLog(store, destination="shop", segment_bytes=BYTES)
    (made,) = salvage(store, middle.name)
    assert made.transactions == 2
    assert values(store) == whole[:6] + whole[8:]
    TransactionLog(store, destination="shop", segment_bytes=BYTES).close()


def test_the_end_of_the_store_is_cut_off_and_read_again(tmp_path: Path, transactions: list[Transaction]) -> None:
    """RocketMQ's recovery does so unasked."""
    log = TransactionLog(tmp_path, destination="shop", segment_bytes=1 << 20)
    log.put(transactions[:COUNT])
    log.close()
    whole = values(tmp_path)
    (segment,) = list_segments(tmp_path)
    entries = read_entries(segment)
    flip(segment, 7, 8)
    (made,) = salvage(tmp_path, segment.name)
    assert made.how == "cut off" and made.transactions == 2
    assert segment.stat().st_size == int(entries["offset"][7])
    assert list(segment.parent.glob("*.cut"))
    log = TransactionLog(tmp_path, destination="shop", segment_bytes=1 << 20)
    assert log.last_seq == int(entries["seq"][6])
    log.put(transactions)
    log.close()
    assert values(tmp_path)[:COUNT] == whole and len(values(tmp_path)) == COUNT + 2


def test_the_middle_of_the_newest_segment(tmp_path: Path, transactions: list[Transaction]) -> None:
    """Nothing is appended to a segment that cannot be verified to its end: the writer begins a new one."""
    log = TransactionLog(tmp_path, destination="shop", segment_bytes=1 << 20)
    log.put(transactions[:COUNT])
    log.close()
    whole = values(tmp_path)
    (segment,) = list_segments(tmp_path)
    flip(segment, 3)
    salvage(tmp_path, segment.name)
    log = TransactionLog(tmp_path, destination="shop", segment_bytes=1 << 20)
    log.put(transactions)
    log.close()
    assert len(list_segments(tmp_path)) == 2
    assert values(tmp_path)[: COUNT - 1] == whole[:3] + whole[4:] and len(values(tmp_path)) == COUNT + 1
    TransactionLog(tmp_path, destination="shop", segment_bytes=1 << 20).close()


def test_a_segment_that_turns_up_again(store: Path) -> None:
    whole, middle = values(store), list_segments(store)[1]
    data = middle.read_bytes()
    flip(middle, 1)
    salvage(store, middle.name)
    middle.write_bytes(data)
    index_path(middle).unlink()
    write_damaged(store, ())
    TransactionLog(store, destination="shop", segment_bytes=BYTES).close()
    assert values(store) == whole


def test_it_does_not_happen_by_accident(store: Path) -> None:
    middle = list_segments(store)[1]
    before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file() and p.name != "lock"}
    with pytest.raises(UsageError, match="no loss to accept"):
        salvage(store, middle.name)
    for name in ("", "*", "../" + middle.name, middle.name[:-1], "000-0000009-00000000004.binlog"):
        with pytest.raises(UsageError, match="no segment"):
            salvage(store, name)
    log = TransactionLog(store, destination="shop", segment_bytes=BYTES)
    flip(middle, 1)
    with pytest.raises(LeaseHeldError):
        salvage(store, middle.name)
    log.close()
    assert {p for p in store.rglob("*") if p.is_file() and p.name != "lock"} == before.keys()


def test_a_damaged_or_newer_record_is_refused(store: Path) -> None:
    (store / "damaged.json").write_text('{"version": 2, "ranges": []}')
    with pytest.raises(VersionError, match="version 2"):
        read_damaged(store)
    for text in ("{", "[]", '{"version": 1}', '{"version": 1, "ranges": [{}]}'):
        (store / "damaged.json").write_text(text)
        with pytest.raises(DamagedError, match=r"damaged\.json"):
            read_damaged(store)


def test_the_command(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    middle = list_segments(store)[1]
    assert main(["inspect", str(store), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sound"] and report["clean_stop"] and [s["transactions"] for s in report["segments"]] == [4, 4, 1]
    assert report["checkpoint"]["segment"] == list_segments(store)[-1].name
    flip(middle, 1)
    assert main(["inspect", str(store), "--json"]) == 2
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert middle.name in report["damage"] and "restoring.md" in told.err
    assert [len(s["damaged"]) for s in report["segments"]] == [0, 1, 0]
    assert main(["inspect", str(store), "--accept-loss", middle.name, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["accepted"][0]["transactions"] == 1 and report["given_up"] == report["accepted"]
    assert main(["inspect", str(store / "checkpoint"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "checkpoint"
    assert main(["inspect", str(store / "segments"), "--accept-loss", middle.name]) == 2


def test_every_byte_of_a_segment_in_the_middle(store: Path, transactions: list[Transaction]) -> None:
    """Whichever byte is damaged, at most its transaction is lost."""
    whole, middle = values(store), list_segments(store)[1]
    data, entries = middle.read_bytes(), read_entries(middle)
    first = int(entries["offset"][0])
    for at in range(0, len(data), 17):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        middle.write_bytes(changed)
        examined = examine(middle, is_last=False)
        lost = sum(len(loss.entries) for loss in examined.losses)
        assert lost == (1 if at >= first else 4), at
    assert len(whole) == COUNT and issubclass(DamagedError, CdcError)


def test_an_index_that_readers_refuse_is_not_sound(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One flipped bit in the flags, the table mask or the length of an entry, whose segment is whole."""
    index = index_path(list_segments(store)[0])
    whole = index.read_bytes()
    for at in range(HEADER_SIZE, HEADER_SIZE + 2 * ENTRY_SIZE, 7):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert main(["inspect", str(store), "--json"]) == 2, at
        report = json.loads(capsys.readouterr().out)
        assert not report["sound"] and "fails its checksum" in report["damage"] and index.name in report["damage"]
    index.write_bytes(whole)
    assert main(["inspect", str(store), "--json"]) == 0
