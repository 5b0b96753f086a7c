"""The folder of prepared XA transactions: what a start makes of it, and version 1."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, VersionError
from cdc.binlog.xa_rows import read_rows
from cdc.store.formats.prepared import (
    FOLDER,
    LIST_NAME,
    OTHERS_NAME,
    PreparedTransaction,
    PreparedTransactions,
    describe,
    pending,
    read_prepared,
)
from tests.support.rare_events import split_events

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
FILE = 1 << 34
"""The seq of offset 0 of the first file."""
ONE = PreparedTransaction("x'61',x'',1", FILE + 100, 1_700_000_000_000_000, "u:1", ("shop.orders",))
TWO = PreparedTransaction("x'62',x'',1", FILE + 200, 1_700_000_000_000_001, None, ("shop.items", "shop.orders"))
OTHER = PreparedTransaction("x'63',x'',1", FILE + 300, 1_700_000_000_000_002)


def xids(prepared: PreparedTransactions) -> list[str]:
    return [entry.xid for entry in prepared.pending]


def opened(store: Path, up_to: int) -> list[str]:
    """The pending transactions of a writer that goes on after a seq."""
    with closing(PreparedTransactions(store, up_to)) as prepared:
        return xids(prepared)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with closing(PreparedTransactions(tmp_path, 0)) as prepared:
        prepared.put_aside(ONE, b"head", [b"rows", memoryview(b"more")])
        prepared.put_aside(TWO, b"head", [b"x"])
        prepared.note(OTHER)
        prepared.sync()
    return tmp_path


def test_what_was_synced_is_there_again(store: Path) -> None:
    with closing(PreparedTransactions(store, FILE + 300)) as prepared:
        assert xids(prepared) == [ONE.xid, TWO.xid, OTHER.xid]
        entry = prepared.find(ONE.xid)
        assert entry == replace(ONE, offset=4, size=12) and prepared.path(entry).read_bytes() == b"headrowsmore"
        assert prepared.find("x'ff',x'',1") is None
    assert [entry.xid for entry in pending(store)] == [ONE.xid, TWO.xid]
    shown = describe(store)
    assert (shown["count"], shown["bytes"]) == (2, 17)
    assert shown["transactions"][0]["time"] == "2023-11-14T22:13:20Z" and shown["transactions"][1]["gtid"] is None
    for path in (store / FOLDER).iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_prepared_after_the_stores_end_is_read_again(store: Path) -> None:
    assert opened(store, FILE + 250) == [ONE.xid, TWO.xid]
    assert opened(store, FILE + 199) == [ONE.xid]
    assert [path.name for path in sorted((store / FOLDER).glob("*.binlog"))] == [ONE.file_name]


def test_one_that_ended_counts_by_the_stores_end(store: Path) -> None:
    with closing(PreparedTransactions(store, FILE + 300)) as prepared:
        for xid in (ONE.xid, OTHER.xid):
            entry = prepared.find(xid)
            assert entry is not None
            prepared.end(entry, FILE + 400)
        assert xids(prepared) == [TWO.xid]
        prepared.sync()
        assert opened(store, FILE + 399) == [ONE.xid, TWO.xid, OTHER.xid], "its end was not stored"
        prepared.forget(FILE + 399)
        assert prepared.path(ONE).exists()
        prepared.forget(FILE + 400)
        assert not prepared.path(ONE).exists()
    assert opened(store, FILE + 400) == [TWO.xid]
    assert [entry.xid for entry in pending(store)] == [TWO.xid]


def test_an_xid_that_is_used_again(store: Path) -> None:
    reused = replace(ONE, seq=FILE + 500)
    with closing(PreparedTransactions(store, FILE + 300)) as prepared:
        entry = prepared.find(ONE.xid)
        assert entry is not None
        prepared.end(entry, FILE + 400)
        prepared.put_aside(reused, b"head", [b"other"])
        prepared.sync()
    with closing(PreparedTransactions(store, FILE + 600)) as prepared:
        entry = prepared.find(ONE.xid)
        assert entry is not None and entry.seq == reused.seq and prepared.path(entry).read_bytes() == b"headother"
        prepared.note(replace(OTHER, xid=ONE.xid, seq=FILE + 700))  # the end of the one before was not seen
        prepared.sync()
    with closing(PreparedTransactions(store, FILE + 700)) as prepared:
        entry = prepared.find(ONE.xid)
        assert entry is not None and not entry.size


def test_a_file_that_is_missing_or_torn_is_left_to_the_search(store: Path) -> None:
    (store / FOLDER / ONE.file_name).unlink()
    (store / FOLDER / TWO.file_name).write_bytes(b"hea")
    assert opened(store, FILE + 300) == [OTHER.xid]


def test_many_files_are_open_at_a_time(tmp_path: Path) -> None:
    with closing(PreparedTransactions(tmp_path, 0)) as prepared:
        for number in range(200):
            prepared.put_aside(replace(ONE, xid=f"x'{number:04x}',x'',1", seq=FILE + number), b"", [b"rows"])
        prepared.sync()
    assert len(opened(tmp_path, FILE + 1000)) == 200


def test_nothing_is_written_without_prepared_transactions(tmp_path: Path) -> None:
    with closing(PreparedTransactions(tmp_path, 0)) as prepared:
        prepared.forget(1)
        prepared.sync()
    assert not list(tmp_path.iterdir()) and not read_prepared(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"version": 1}', '{"version": 1, "transactions": [3]}'])
def test_damage_is_named(store: Path, content: str) -> None:
    (store / FOLDER / LIST_NAME).write_text(content)
    with pytest.raises(DamagedError, match=r"prepared\.json.*remove the folder"):
        PreparedTransactions(store, FILE + 300)
    (store / FOLDER / LIST_NAME).unlink()
    (store / FOLDER / OTHERS_NAME).write_text(content)
    assert opened(store, FILE + 300) == []


@pytest.mark.parametrize("name", [LIST_NAME, OTHERS_NAME])
def test_a_newer_version_is_refused(store: Path, name: str) -> None:
    path = store / FOLDER / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(VersionError, match=name):
        PreparedTransactions(store, FILE + 300)


def test_version_1_is_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "prepared-v1", tmp_path / FOLDER)
    [entry] = pending(tmp_path)
    assert (entry.xid, entry.tables, entry.time_us) == ("x'6162',x'',1", ("shop.orders",), 1700000000000001)
    path = tmp_path / FOLDER / entry.file_name
    assert [event[4] for event in split_events(b"".join(read_rows(path, entry.offset, entry.size, entry.xid)))] == [
        19,
        30,
    ]
    assert [each.ended_seq for each in read_prepared(tmp_path)] == [0, FILE + 5000]
    assert opened(tmp_path, FILE + 4999) == [entry.xid, "x'6364',x'65',7", "x'66',x'',1"]
