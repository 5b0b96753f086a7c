"""A store and its new master: what they have in common stays, the rest is truncated."""

from __future__ import annotations

import json
import os
import random
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    IdentityError,
)
from cdc.binlog.entry import ENTRY_SIZE, HEADER_SIZE
from cdc.copies.standby import follower, reconcile
from cdc.copies.standby.role import (
    read_epoch,
)
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, make_header, seal
from cdc.store.formats.missing import LostRange, write_damaged
from cdc.store.retention.cleaner import remove_until
from cdc.store.writer.durability import PutStatus
from cdc.testing.transactions import make_transactions
from tests.support.standby import digests
from tests.support.unit_standby import (
    OpenLog,
    caught_up,
    fill,
    follow,
    open_log,
    pair,
    same,
    seqs,
    serve,
    until,
)


def test_a_store_with_nothing_in_common_is_not_truncated(stack: ExitStack, tmp_path: Path) -> None:
    fill(tmp_path / "s", make_transactions(3))
    before = digests(tmp_path / "s")
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    error = follow(stack, tmp_path / "s", master.address).wait()
    assert isinstance(error, IdentityError)
    assert "none in common" in str(error)
    assert digests(tmp_path / "s") == before


def test_a_former_master_truncates_what_the_new_one_never_had(stack: ExitStack, tmp_path: Path) -> None:
    """The new master has continued from the source. The transactions that only the old one has are kept in cut/."""
    old, new = tmp_path / "old", tmp_path / "new"
    transactions = make_transactions(900)
    log = open_log(stack, old)
    master = serve(stack, log)
    standby = follow(stack, new, master.address)
    log.put(transactions[:500])
    caught_up(log, master)
    standby.close()
    assert log.put(transactions[500:800]) is PutStatus.SLAVE_NOT_AVAILABLE
    master.close()
    log.close()
    new_log = open_log(stack, new)
    new_master = serve(stack, new_log)
    # In other pieces, and without every third: the same seqs, at other offsets.
    new_log.put([t for n, t in enumerate(transactions) if 500 <= n < 700 and n % 3])
    rejoined = follow(stack, old, new_master.address)
    caught_up(new_log, new_master)
    same(new, old)
    assert new_log.put(transactions[800:]) is PutStatus.PUT_OK
    same(new, old)
    kept = [path for path in (old / "cut").rglob("*") if path.is_file()]
    first_lost = transactions[501].data
    assert any(first_lost in path.read_bytes() for path in kept), kept
    assert any(transactions[799].data in path.read_bytes() for path in kept), kept
    epoch = read_epoch(old)
    assert epoch is not None
    assert (epoch.number, epoch.state) == (2, "standby")
    rejoined.close()
    with OpenLog(old) as reopened:
        assert reopened.last_seq == transactions[-1].seq


def test_a_rebuilt_index_gets_the_entries_of_the_master(stack: ExitStack, tmp_path: Path) -> None:
    """Its store times differ, the log does not: nothing is truncated, and the indexes are equal afterwards."""
    transactions = make_transactions(500)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    standby = follow(stack, tmp_path / "s", master.address)
    log.put(transactions)
    caught_up(log, master)
    standby.close()
    last = layout.list_segments(tmp_path / "s")[-1]
    os.truncate(layout.index_path(last), HEADER_SIZE + 3 * ENTRY_SIZE)
    (tmp_path / "s" / "checkpoint").unlink()
    inode = last.stat().st_ino
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert last.stat().st_ino == inode
    assert not (tmp_path / "s" / "cut").exists()


def test_a_copy_that_ends_at_any_byte_is_completed(stack: ExitStack, tmp_path: Path) -> None:
    """The standby's segment ends at any byte, its index at several; the store opens, reconciles, and is equal afterwards.

    ``TOWPATH_STANDBY_CUTS=1`` tries every byte, else every 61st, and those around the end of each transaction.
    """
    transactions = make_transactions(3)
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    with ExitStack() as first:
        follow(first, tmp_path / "whole", master.address)
        log.put(transactions)
        caught_up(log, master)
    segment = layout.list_segments(tmp_path / "whole")[0]
    index = layout.index_path(segment)
    ends = [int(e["offset"] + e["length"]) for e in IndexFile(segment).entries]
    positions = [
        *range(0, segment.stat().st_size, int(os.environ.get("TOWPATH_STANDBY_CUTS") or 61)),
        *(end + more for end in ends for more in (-1, 0, 1) if end + more <= ends[-1]),
    ]
    for n, size in enumerate(positions):
        copy = tmp_path / f"s{n}"
        shutil.copytree(tmp_path / "whole", copy)
        (copy / "checkpoint").unlink()
        (copy / "abort").touch()
        torn = layout.segments_folder(copy) / segment.name
        os.truncate(torn, size)
        entries = sum(end <= size for end in ends)
        torn_index = layout.index_path(torn)
        os.truncate(torn_index, min(index.stat().st_size, HEADER_SIZE + entries * ENTRY_SIZE + n % 3 * 17))
        with ExitStack() as each:
            follow(each, copy, master.address)
            until(lambda copy=copy: seqs(copy) == [t.seq for t in transactions], f"a standby cut at byte {size}")  # type: ignore[misc]
            same(tmp_path / "m", copy)
        shutil.rmtree(copy)


def test_random_divergence_is_found_exactly(stack: ExitStack, tmp_path: Path) -> None:
    seed = int(os.environ.get("TOWPATH_SEED") or 20_240_601)
    print(f"TOWPATH_SEED={seed}")
    dice = random.Random(seed)
    transactions = make_transactions(700)
    for number in range(8):
        common, left_out = dice.randrange(1, 600), dice.randrange(0, 80)
        old, new = tmp_path / f"old{number}", tmp_path / f"new{number}"
        fill(new, transactions[:common])
        shutil.copytree(new, old)
        fill(old, transactions[: common + dice.randrange(0, 100)])
        had = seqs(old)
        with ExitStack() as each:
            log = open_log(each, new)
            # Where nothing was left out, the old one may be ahead, behind or equal.
            log.put(transactions[common + left_out : common + left_out + dice.randrange(1, 100)])
            shared = [s for s, t in zip(had, seqs(new), strict=False) if s == t]
            master = serve(each, log)
            follow(each, old, master.address)
            caught_up(log, master)
            same(new, old)
        kept = b"".join(path.read_bytes() for path in (old / "cut").rglob("*") if path.is_file())
        by_seq = {t.seq: t.data for t in transactions}
        assert all(by_seq[seq] in kept for seq in had[len(shared) :]), (number, common, left_out)
        assert not shared or by_seq[shared[0]] not in kept


def test_retention_during_the_comparison_truncates_nothing(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that the master has removed is not one that the master never had."""
    transactions = make_transactions(900)
    log, master, standby = pair(stack, tmp_path, transactions)
    standby.close()
    term = tmp_path / "s" / "term.json"
    term.write_text(json.dumps({**json.loads(term.read_text()), "compared": ""}))  # compare all of them
    times: list[int] = []

    def later(*arguments: object) -> object:
        if not times:
            remove_until(tmp_path / "m", transactions[400].seq)
        times.append(1)
        return reconcile.plan_reconcile(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(follower, "plan_reconcile", later)
    kept = [
        seq
        for seq in seqs(tmp_path / "s")
        if seq > transactions[-1].seq - (transactions[1].seq - transactions[0].seq) * 200
    ]
    follow(stack, tmp_path / "s", master.address)
    until(lambda: len(times) > 1, "a second comparison")
    assert [seq for seq in seqs(tmp_path / "s") if seq >= kept[0]] == kept
    log.put(make_transactions(901)[900:])
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
    assert not (tmp_path / "s" / "cut").exists()


@pytest.mark.parametrize("where", ["m", "s"])
def test_after_accepted_data_loss_everything_is_compared(stack: ExitStack, tmp_path: Path, where: str) -> None:
    """A standby's index that was changed by hand equals the master's again."""
    log, master, standby = pair(stack, tmp_path, make_transactions(900))
    standby.close()
    segment = layout.list_segments(tmp_path / "s")[0]
    index = layout.index_path(segment)
    entries = IndexFile(segment).entries.copy()
    entries["store_time_us"][3] += 7
    index.write_bytes(make_header() + seal(entries))
    first = int(entries["seq"][0])
    lost_range = LostRange(
        segment.name, 4, 1, first, first, 1, ("shop.orders",), "passed over", "a test", "2026-01-01T00:00Z"
    )
    write_damaged(tmp_path / where, (lost_range,))
    follow(stack, tmp_path / "s", master.address)
    caught_up(log, master)
    same(tmp_path / "m", tmp_path / "s")
