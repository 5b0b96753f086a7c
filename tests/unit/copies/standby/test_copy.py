"""The copy that a standby writes: small files, tables and low-water marks."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    CorruptStreamError,
    CutOffError,
    VersionError,
)
from cdc.copies.standby import copy, protocol
from cdc.disk.durable import replace_file
from cdc.store.formats import layout
from cdc.store.formats.missing import read_removed, require_kept
from cdc.store.formats.state import TableNumbers
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import PutStatus
from cdc.testing.transactions import make_transactions
from tests.support.unit_standby import (
    OpenLog,
    caught_up,
    follow,
    open_log,
    pair,
    same,
    serve,
)


def test_a_former_master_keeps_its_own_low_water_mark(stack: ExitStack, tmp_path: Path) -> None:
    """Its retention went further than the new master's, and subscribers that miss the difference are told."""
    transactions = make_transactions(1200)
    log, master, standby = pair(stack, tmp_path, transactions[:900])
    standby.close()
    master.close()
    remove_until(tmp_path / "m", transactions[400].seq)
    log.close()
    mark = read_removed(tmp_path / "m").seq
    assert mark > 0
    with ExitStack() as inner:
        new_log = open_log(inner, tmp_path / "s")
        new_master = serve(inner, new_log)
        follow(inner, tmp_path / "m", new_master.address)
        assert new_log.put(transactions[900:1000]) in (PutStatus.PUT_OK, PutStatus.SLAVE_NOT_AVAILABLE)
        caught_up(new_log, new_master)
        assert read_removed(tmp_path / "m").seq == mark
        with pytest.raises(CutOffError):
            require_kept(tmp_path / "m", transactions[3].seq)
        remove_until(tmp_path / "s", transactions[600].seq)
        new_log.put(transactions[1000:])
        caught_up(new_log, new_master)
        same(tmp_path / "s", tmp_path / "m")


def test_a_former_master_with_more_tables_opens_after_a_kill(stack: ExitStack, tmp_path: Path) -> None:
    """Its checkpoint demanded three names; the new master's list has two."""
    common, own = make_transactions(60, tables=("shop.a", "shop.b")), make_transactions(90, tables=("shop.c",))[60:]
    log, master, standby = pair(stack, tmp_path, common)
    standby.close()
    log.put(own)
    assert len(TableNumbers(tmp_path / "m").names) == 3
    master.close()
    log.close()
    with ExitStack() as inner:
        new_log = open_log(inner, tmp_path / "s")
        new_master = serve(inner, new_log)
        follow(inner, tmp_path / "m", new_master.address)
        caught_up(new_log, new_master)
        same(tmp_path / "s", tmp_path / "m")
        ignore = shutil.ignore_patterns(".*.new")  # they come and go
        shutil.copytree(tmp_path / "m", tmp_path / "killed", ignore=ignore)  # what a kill leaves
    assert TableNumbers(tmp_path / "killed").names == ["shop.a", "shop.b"]
    with OpenLog(tmp_path / "killed") as opened:
        assert opened.last_seq == common[-1].seq


def test_a_file_larger_than_a_frame_is_copied(stack: ExitStack, tmp_path: Path) -> None:
    """A schemas file with the definitions of many thousand tables."""
    transactions = make_transactions(4)
    log, _, _ = pair(stack, tmp_path, transactions[:2])
    content = json.dumps({"version": 1, "tables": {f"shop.t{n}": "x" * 200 for n in range(100_000)}})
    assert len(content) > protocol.MAX_PAYLOAD
    replace_file(tmp_path / "m" / "schemas" / "7.json", content.encode())
    assert log.put(transactions[2:], timeout_s=30) is PutStatus.PUT_OK
    assert (tmp_path / "s" / "schemas" / "7.json").read_text() == content, "it is there before what needs it"
    same(tmp_path / "m", tmp_path / "s")


def make_copy(store: Path) -> copy.Copy:
    from cdc.store.formats.checkpoint import CheckpointWriter

    layout.create(store, "shop")
    return copy.Copy(store, CheckpointWriter(store, lambda: 0), "peer", 0)


def test_file_parts_that_do_not_fit_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standby_copy = make_copy(tmp_path)
    standby_copy.file("tables.json", b'{"version"', whole=False)
    with pytest.raises(CorruptStreamError, match=r"in the middle of 'tables\.json'"):
        standby_copy.file("store.json", b"{}")
    monkeypatch.setattr(copy, "MAX_FILE", 100)
    with pytest.raises(CorruptStreamError, match="of more than 100 bytes"):
        standby_copy.file("tables.json", bytes(91), whole=False)
    with pytest.raises(CorruptStreamError, match="is not JSON"):
        make_copy(tmp_path).file("tables.json", b"{")
    assert not (tmp_path / "tables.json").exists()


def test_a_small_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    standby_copy = make_copy(tmp_path)
    before = (tmp_path / "store.json").read_bytes()
    with pytest.raises(VersionError, match=r"store\.json.*version 99"):
        standby_copy.file("store.json", b'{"format": "towpath-store", "version": 99, "destination": "shop"}')
    assert (tmp_path / "store.json").read_bytes() == before
