"""Prepared XA transactions in capture's session: nothing lost and nothing twice after cuts, kills and power cuts; and
the search of an XA PREPARE that the store does not know."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.base.errors import CdcError, DamagedError, UnsupportedEventError
from cdc.binlog.positions import BinlogPosition
from cdc.capture import Capture
from cdc.capture.prepared_search import PreparedSearch
from cdc.config import DestinationConfig
from cdc.disk import files
from cdc.store.formats.prepared import PreparedTransaction, pending
from cdc.testing.binlog import packets_of
from cdc.testing.faults import FaultyFiles, UnflushedFiles
from cdc.testing.source import Cut, FakeSource, History, Repeat, prepared_history
from cdc.testing.source.check import find_problems
from cdc.testing.source.harness import SessionHarness
from tests.slow.capture.support import Configure, inject

HISTORY = prepared_history()
EVENTS = HISTORY.dump("binlog.000001", 4)
BYTES = sum(len(packets_of(event)) for event in EVENTS)


@pytest.fixture(scope="module")
def source() -> Iterator[FakeSource]:
    with FakeSource(HISTORY) as fake_source:
        yield fake_source


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> PreparedTransaction | None:
        raise AssertionError("the store has lost a prepared transaction")

    monkeypatch.setattr(PreparedSearch, "find", find)


def require_pending(store: Path) -> None:
    [entry] = pending(store)
    assert entry.xid == f"x'{b'pending'.hex()}',x'',1" and entry.tables == ("shop.orders",)
    assert entry.gtid is not None and entry.time_us
    kept = {path.name for path in (store / "prepared").iterdir()}
    assert entry.file_name in kept


def test_the_history_is_stored(config: DestinationConfig, source: FakeSource, no_search: None) -> None:
    with closing(SessionHarness(config, source)) as harness:
        assert harness.connect(HISTORY) is None
        assert find_problems(config.store.path, HISTORY) == []
        require_pending(config.store.path)
        harness.reopen()
        assert harness.connect(HISTORY) is None
        require_pending(config.store.path)
    # What was put aside is a binlog file of mode 0600.
    [entry] = pending(config.store.path)
    path = config.store.path / "prepared" / entry.file_name
    assert path.stat().st_mode & 0o777 == 0o600 and path.stat().st_size == entry.size
    assert {path.name for path in path.parent.iterdir()} == {entry.file_name, "others.json", "prepared.json"}


@pytest.mark.parametrize("step", [151, pytest.param(3, marks=pytest.mark.long)])
def test_a_cut_and_a_kill_at_many_bytes(
    config: DestinationConfig, source: FakeSource, no_search: None, seed: int, step: int
) -> None:
    for at in range(seed % step, BYTES, step):
        inject(config, source, HISTORY, Cut(at), (1 << 20, 61, 300)[at % 3], kill=at % 2 == 1)
        require_pending(config.store.path)
    for event in range(step % 2, len(EVENTS), 1 if step < 10 else 5):
        inject(config, source, HISTORY, Repeat(event), 300, kill=event % 2 == 1)


@pytest.mark.long
@pytest.mark.parametrize("step", [53, pytest.param(13, marks=pytest.mark.long)])
def test_a_kill_after_many_pieces(config: DestinationConfig, source: FakeSource, no_search: None, step: int) -> None:
    store = config.store.path
    killed = store.with_name("killed")
    for at in range(0, BYTES, step):
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(killed, ignore_errors=True)
        harness = SessionHarness(config, source)
        harness.connect(HISTORY, Cut(at), piece=29, before_end=lambda: harness.copy_as_killed(killed))  # noqa: B023
        harness.close()
        shutil.rmtree(store)
        killed.rename(store)
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(HISTORY) is None
        assert find_problems(store, HISTORY) == [], f"killed after {at} bytes"


@pytest.mark.parametrize("piece", [pytest.param(size, marks=pytest.mark.long) for size in (1 << 20, 67, 23)])
def test_a_power_cut_at_every_change(
    config: DestinationConfig, source: FakeSource, seed: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what has no captured rows may have to be looked for."""
    original_find = PreparedSearch.find

    def find(self: PreparedSearch, xid: str, file: str, pos: int, epoch: int) -> PreparedTransaction | None:
        entry = original_find(self, xid, file, pos, epoch)
        assert entry is not None and not entry.size, "the store has lost a prepared transaction"
        return entry

    monkeypatch.setattr(PreparedSearch, "find", find)
    store = config.store.path
    change = 0
    while True:
        shutil.rmtree(store, ignore_errors=True)
        faulty = FaultyFiles(store.parent)
        faulty.power_off_at(change)
        ended = False
        with files.use(faulty):
            try:
                with closing(SessionHarness(config, source)) as harness:
                    harness.connect(HISTORY, piece=piece)
                    ended = not faulty.off
            except (CdcError, OSError):
                pass
            faulty.power_cut(seed=seed + change if change % 2 else None)
        with files.use(UnflushedFiles()), closing(SessionHarness(config, source)) as harness:
            error = harness.connect(HISTORY)
            assert error is None, f"power cut at change {change}: {error}"
        assert find_problems(store, HISTORY) == [], f"power cut at change {change}"
        require_pending(store)
        if ended:
            break
        change += 1 if piece > 1000 or piece < 60 else 3
    assert change > 20


def test_transactions_larger_than_the_buffers(configure: Configure, no_search: None) -> None:
    """Their beginning is in the segment already when they are put aside."""
    history = History()
    history.transaction([("orders", [1])])
    history.prepare("big", *([[("lines", range(100_000))]] * 6), [("orders", [2]), ("noise", [1])])
    history.transaction([("orders", [3])])
    history.prepare("noise", [("noise", range(200_000))])
    history.prepare("two", *([[("noise", range(100_000)), ("lines", range(100_000))]] * 3))
    history.end_prepared("big")
    history.end_prepared("noise")
    history.end_prepared("two", commit=False)
    history.transaction([("orders", [4])])
    with FakeSource(history) as source:
        config = configure(source)
        with closing(SessionHarness(config, source)) as harness:
            for at in (300_000, 1_700_000, 3_000_000, 4_000_000, 6_000_000, None):
                harness.connect(history, None if at is None else Cut(at), piece=700_000)
                harness.reopen()
        assert find_problems(config.store.path, history) == []
        assert not pending(config.store.path)


def test_the_proof_of_the_source_passes_over_prepared_transactions(configure: Configure, no_search: None) -> None:
    """After the positions between two stored transactions are lost, all that lies between them is read again."""
    history = History()
    history.transaction([("orders", [1])])
    history.prepare("small", [("orders", [2])])
    history.prepare("large", *([[("orders", range(100_000))]] * 40))
    history.transaction([("orders", [3])])
    with FakeSource(history) as source:
        config = configure(source)
        for xid in ("small", "large", None):
            Capture(config).run(until_current=True)
            for name in ("*.index", "checkpoint"):
                for path in config.store.path.rglob(name):
                    path.unlink()
            Capture(config).run(until_current=True)
            assert find_problems(config.store.path, history) == []
            if xid is not None:
                history.end_prepared(xid)


# --- the search


def begun_at(history: History, number: int) -> BinlogPosition:
    """The position at which a transaction begins."""
    transaction = history.transactions[number]
    return BinlogPosition(transaction.file, transaction.start)


class LateHarness(SessionHarness):
    """Begins at a given position."""

    begin = BinlogPosition("binlog.000001", 4)

    def resume(self, history: History) -> BinlogPosition:
        return self.begin if self.log.last_seq is None else super().resume(history)


def late(config: DestinationConfig, source: FakeSource, history: History, number: int) -> CdcError | None:
    with closing(LateHarness(config, source)) as harness:
        harness.begin = begun_at(history, number)
        return harness.connect(history)


def stored(config: DestinationConfig, history: History, number: int) -> list[str]:
    """The problems of a store that begins at a transaction."""
    history = History.__new__(History)
    history.__dict__ |= HISTORY.__dict__
    history.transactions = HISTORY.transactions[number:]
    return find_problems(config.store.path, history)


def test_a_store_that_begins_after_a_prepare_finds_it(
    config: DestinationConfig, source: FakeSource, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(len(HISTORY.transactions)):
        shutil.rmtree(config.store.path, ignore_errors=True)
        assert late(config, source, HISTORY, number) is None
        assert stored(config, HISTORY, number) == [], number


def test_another_choice_of_tables_looks_for_the_rows_again(configure: Configure, tmp_path: Path) -> None:
    """At the XA PREPARE the table was not captured; its snapshot may come before the XA COMMIT."""
    history = History()
    history.prepare("both", [("orders", [1])], [("lines", [2])])
    history.prepare("added", [("lines", [3])])
    history.prepare("purged", [("orders", [4])])
    history.transaction([("orders", [5])])
    with FakeSource(history) as source:
        config = configure(source)
        tables = config.tables.model_copy(update={"exclude": (r"shop\.(noise|lines)",)})
        with closing(SessionHarness(config.model_copy(update={"tables": tables}), source)) as harness:
            assert harness.connect(history) is None
        history.end_prepared("added")
        history.end_prepared("both")
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
            assert find_problems(config.store.path, history) == []
        assert [entry.tables for entry in pending(config.store.path)] == [("shop.orders",)]
        with closing(SessionHarness(config.model_copy(update={"tables": tables}), source)) as harness:
            history.rotate()
            history.transaction([("orders", [6])])
            assert harness.connect(history) is None
            history.files = history.files[1:]
            history.end_prepared("purged")
            assert harness.connect(history) is None  # its rows of the tables of then are enough, and a warning says so
        assert find_problems(config.store.path, history) == []


def test_a_list_that_is_lost_is_made_anew(configure: Configure, tmp_path: Path) -> None:
    history = prepared_history()
    with FakeSource(history) as source:
        config = configure(source)
        harness = SessionHarness(config, source)
        assert harness.connect(history) is None
        harness.close()
        shutil.rmtree(config.store.path / "prepared")
        history.rotate()
        history.prepare("pending2", [("lines", [1])])
        history.end_prepared("pending")
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []
        assert [entry.xid for entry in pending(config.store.path)] == [f"x'{b'pending2'.hex()}',x'',1"]


def test_what_ended_since_the_search_began_is_not_pending(configure: Configure) -> None:
    history = History()
    for xid in ("first", "known", "last"):
        history.prepare(xid, [("orders", [1])])
        history.rotate()
    history.transaction([("orders", [2])])
    with FakeSource(history) as source:
        config = configure(source)
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
        path = config.store.path / "prepared" / "prepared.json"
        document = json.loads(path.read_text())
        document["transactions"] = document["transactions"][1:2]
        path.write_text(json.dumps(document))
        for xid in ("last", "known", "first"):  # the search for the last one passes over the known one's file
            history.end_prepared(xid)
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []
        assert not pending(config.store.path)


def test_one_that_was_purged_stops_and_can_be_passed(configure: Configure) -> None:
    history = History()
    history.prepare("gone", [("orders", [1])])
    history.rotate()
    history.transaction([("orders", [2])])
    history.end_prepared("gone")
    history.transaction([("orders", [3])])
    history.files = history.files[1:]
    xid = f"x'{b'gone'.hex()}',x'',1"
    with FakeSource(history) as source:
        config = configure(source)
        error = late(config, source, history, 1)
        assert isinstance(error, UnsupportedEventError)
        assert f"the XA transaction {xid} is committed here" in str(error)
        assert "binlog.000002" in str(error) and f'source.ignore_xa: ["{xid}"]' in str(error)
        ignoring = configure(source, ignore_xa=f'["{xid}"]')
        assert late(ignoring, source, history, 1) is None
        history.transactions = [history.transactions[1], history.transactions[3]]
        assert find_problems(config.store.path, history) == []


def test_a_rollback_of_an_unknown_one_passes(configure: Configure) -> None:
    history = History()
    history.transaction([("orders", [2])])
    history.end_prepared("unknown", commit=False)
    history.transaction([("orders", [3])])
    with FakeSource(history) as source:
        config = configure(source)
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []


def test_damaged_rows_stop_and_the_search_repairs_them(configure: Configure) -> None:
    history = prepared_history()
    with FakeSource(history) as source:
        config = configure(source)
        with closing(SessionHarness(config, source)) as harness:
            assert harness.connect(history) is None
            [entry] = pending(config.store.path)
            path = config.store.path / "prepared" / entry.file_name
            content = bytearray(path.read_bytes())
            content[-60] ^= 1
            path.write_bytes(content)
            history.end_prepared("pending")
            error = harness.connect(history)
            assert isinstance(error, DamagedError) and entry.xid in str(error) and str(path) in str(error)
            path.unlink()
            assert harness.connect(history) is None
        assert find_problems(config.store.path, history) == []
