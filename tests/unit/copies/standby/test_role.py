"""Leadership epochs and the status files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import (
    DamagedError,
    IdentityError,
    VersionError,
)
from cdc.copies.standby.role import (
    LeadershipEpoch,
    PeerStatus,
    RoleStatus,
    become_master,
    read_epoch,
    read_status,
    require_follows,
    write_epoch,
)
from cdc.testing.transactions import make_transactions
from tests.support.unit_standby import (
    caught_up,
    follow,
    open_log,
    serve,
    until,
)

GOLDEN = Path(__file__).parents[3] / "golden"


def test_a_newer_or_damaged_epoch_file_is_refused(tmp_path: Path) -> None:
    write_epoch(tmp_path, LeadershipEpoch(1, "ab", "standby"))
    assert read_epoch(tmp_path) == LeadershipEpoch(1, "ab", "standby")
    text = (tmp_path / "term.json").read_text()
    (tmp_path / "term.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(VersionError, match=r"term\.json"):
        read_epoch(tmp_path)
    for bad in (text.replace('"standby"', '"slave"'), text.replace('"term": 1', '"term": 0'), "[]"):
        (tmp_path / "term.json").write_text(bad)
        with pytest.raises(DamagedError, match="not a sound leadership epoch"):
            read_epoch(tmp_path)


def test_a_store_follows_newer_epochs_only() -> None:
    master = LeadershipEpoch(4, "aa", "master")
    require_follows(None, master)
    require_follows(LeadershipEpoch(3, "bb", "master"), master)
    require_follows(LeadershipEpoch(4, "aa", "standby"), master)
    with pytest.raises(IdentityError, match="epoch 4, but the standby has already seen epoch 5"):
        require_follows(LeadershipEpoch(5, "bb", "standby"), master)
    with pytest.raises(IdentityError, match="two stores have taken over in the same leadership epoch 4"):
        require_follows(LeadershipEpoch(4, "bb", "standby"), master)


def test_a_take_over_begins_a_new_epoch(tmp_path: Path) -> None:
    assert become_master(tmp_path, None, always=False) is None
    first = become_master(tmp_path, 7)
    assert first is not None
    assert (first.number, first.state, first.since_seq) == (1, "master", 7)
    assert become_master(tmp_path, 9) == first, "the epoch goes on"
    write_epoch(tmp_path, LeadershipEpoch(1, first.id, "standby"))
    second = become_master(tmp_path, 9, always=False)
    assert second is not None
    assert (second.number, second.since_seq) == (2, 9)
    assert second.id != first.id


def test_both_sides_write_their_status(stack: ExitStack, tmp_path: Path) -> None:
    log = open_log(stack, tmp_path / "m")
    master = serve(stack, log)
    follow(stack, tmp_path / "s", master.address)
    log.put(make_transactions(10))
    caught_up(log, master)

    def told(path: Path, role: str) -> bool:
        status = read_status(path)
        return (
            status is not None and status.role == role and status.term == 1 and any(p.connected for p in status.peers)
        )

    until(lambda: told(tmp_path / "m", "sync_master"), "the master's status")
    until(lambda: told(tmp_path / "s", "standby"), "the standby's status")
    (tmp_path / "s" / "standby.json").write_text("{}")
    with pytest.raises(DamagedError, match="written again every second"):
        read_status(tmp_path / "s")


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "term-v1.json", tmp_path / "term.json")
    shutil.copy(GOLDEN / "standby-report-v1.json", tmp_path / "standby.json")
    assert read_epoch(tmp_path) == LeadershipEpoch(3, "ab" * 16, "standby", 0, "000-0000001-00000000004.binlog")
    peer = PeerStatus("10.0.0.7:4100", True, 17179869311, 4096)
    assert read_status(tmp_path) == RoleStatus("standby", 3, 4711, 1_700_000_000_000_000, (peer,))


@pytest.mark.parametrize(("name", "read"), [("term-v1.json", read_epoch), ("standby-report-v1.json", read_status)])
def test_newer_files_are_refused(tmp_path: Path, name: str, read: Callable[[Path], object]) -> None:
    target = tmp_path / {"term-v1.json": "term.json", "standby-report-v1.json": "standby.json"}[name]
    target.write_text((GOLDEN / name).read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(VersionError, match=rf"{target.name}.*version 2; this Towpath knows 1.*newer one"):
        read(tmp_path)
