"""The archive: what is copied, what comes back, two stores at one archive, damage, and a kill at each operation."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, CutOffError, DamagedError, IdentityError, RetryableError, UsageError
from cdc.batches.retention import make_cleaner
from cdc.copies.archive.restore import restore
from cdc.copies.archive.states import KEPT_STATES
from cdc.copies.archive.verify import verify
from cdc.copies.archive.writer import Archiver, backlog_of
from cdc.copies.standby.role import LeadershipEpoch, write_epoch
from cdc.meta.file import FileMeta
from cdc.store.formats.archive_record import read_record
from cdc.store.formats.layout import list_segments, schemas_folder, segments_folder
from cdc.store.formats.missing import read_removed
from cdc.store.reader.reader import StoreReader
from tests.support.archives import (
    SEGMENT_BYTES,
    GoingOn,
    Host,
    KilledError,
    copied,
    killed_at,
    make_host,
)
from tests.support.unit_store import all_seqs, content

DAY_S = 86400


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """A machine with a store of several segments, whose first half is acked."""
    host = make_host(tmp_path / "a", tmp_path / "archive")
    host.fill(60)
    host.ack(all_seqs(host.store)[30])
    schemas_folder(host.store).joinpath("4.json").write_text('{"version": 1, "tables": {}, "unsure": {}}')
    return host


@pytest.fixture
def other(tmp_path: Path) -> Host:
    """Another machine, which has nothing."""
    return make_host(tmp_path / "b", tmp_path / "archive")


def require_same_store(restored: Host, expected: Host) -> None:
    """Capture goes on with the restored store, and both then have the same transactions."""
    filler = GoingOn(restored.store, segment_bytes=SEGMENT_BYTES)
    filler.put(expected.log)
    filler.close()
    assert all_seqs(restored.store) == all_seqs(expected.store)
    for segment in list_segments(restored.store):
        assert segment.read_bytes() == (segments_folder(expected.store) / segment.name).read_bytes()


# --- to the archive and back


def test_a_lost_machine_is_rebuilt(host: Host, other: Host) -> None:
    record = host.upload()
    names = host.names()
    assert len(names) >= 4
    assert host.archived() == names[:-1]
    assert record.archived_seq == all_seqs(host.store)[all_seqs(host.store).index(record.archived_seq)]
    assert backlog_of(host.store, record.archived_seq).segments == 0
    assert verify(host.archive()).faults == []

    done = restore(other.config)
    assert (done.segments, done.meta, done.writer) == (len(names) - 1, "restored", True)
    assert done.last_seq == record.archived_seq == all_seqs(other.store)[-1]
    assert (other.store / "tables.json").read_bytes() == (host.store / "tables.json").read_bytes()
    assert (schemas_folder(other.store) / "4.json").exists()
    before = FileMeta(host.config.meta.path, "shop").read()
    state = FileMeta(other.config.meta.path, "shop").read()
    assert state.source == before.source
    assert state.subscriptions["apply"].acked_seq == before.subscriptions["apply"].acked_seq
    assert state.subscriptions["apply"].next_batch > before.subscriptions["apply"].next_batch
    assert not (other.store / "restoring.json").exists()
    require_same_store(other, host)
    other.log = host.log
    other.fill(40, first=60)
    assert other.upload().archived_seq > record.archived_seq
    assert other.archived() == other.names()[:-1]


def test_nothing_is_copied_twice(host: Host) -> None:
    host.upload()
    archiver = Archiver(host.config)
    archiver.run(everything=True)
    before = content(host.archive_folder)
    archiver.run(everything=True)
    assert content(host.archive_folder) == before
    host.upload()
    changed = content(host.archive_folder).keys() - before.keys()
    assert [name.split("/")[1] for name in changed] == ["states"]  # another process is named as the writer
    host.ack(all_seqs(host.store)[40])
    host.upload()
    kinds = sorted(name.split("/")[1] for name in content(host.archive_folder).keys() - before.keys())
    assert kinds == ["files", "states", "states", "states"]  # the meta, and the states that name it


def test_a_running_archiver_asks_for_nothing_while_nothing_changes(host: Host) -> None:
    archiver = Archiver(host.config)
    archiver.run()
    with killed_at(-1) as operations:
        archiver.run()
    assert operations == []
    host.fill(40, first=60)
    archiver.run()
    assert host.archived() == host.names()[:-1]
    host.upload()  # by a command beside it, under a session of its own
    host.fill(20, first=100)
    archiver.run()
    assert host.archived() == host.names()[:-1]


def test_an_archive_that_begins_late_or_has_old_segments(host: Host, other: Host) -> None:
    """Retention has removed segments before the archive was begun, and removes others later."""
    from tests.support.unit_retention import age

    ends = [int(seqs_of[-1]) for seqs_of in (all_seqs(host.store),)]
    host.ack(ends[0])
    now_us = time.time_ns() // 1000
    age(host.store, [100.0, 100.0] + [0.0] * (len(host.names()) - 2), now_us)
    with FileMeta(host.config.meta.path, "shop") as meta:
        cleaner = make_cleaner(host.config, meta)
        assert cleaner.run().removal.removed == ()  # not in the archive yet
        assert cleaner.run().removal.unarchived == 2
        host.upload()
        assert len(cleaner.run().removal.removed) == 2
    host.upload()
    assert len(host.archived()) == len(host.names()) - 1 + 2
    done = restore(other.config)
    assert done.segments == len(host.names()) - 1
    assert read_removed(other.store).seq == read_removed(host.store).seq
    StoreReader(other.store).require_kept(read_removed(host.store).seq)
    require_same_store(other, host)


def test_restore_all(host: Host, other: Host, tmp_path: Path) -> None:
    test_an_archive_that_begins_late_or_has_old_segments(host, other)
    third = make_host(tmp_path / "c", host.archive_folder)
    done = restore(third.config, everything=True)
    assert done.segments == len(host.names()) - 1 + 2
    assert StoreReader(third.store).removed_seq() == 0  # the removed transactions are there again
    assert all_seqs(third.store)[0] < all_seqs(host.store)[0]


def test_old_segments_leave_the_archive(host: Host, tmp_path: Path) -> None:
    host.upload()
    later = make_host(
        tmp_path / "a", host.archive_folder, store__archive={"url": f"file://{host.archive_folder}", "keep_for": "7d"}
    )
    in_a_month = lambda: datetime.now(UTC) + timedelta(days=30)  # noqa: E731
    Archiver(later.config, clock=in_a_month).run(everything=True)
    assert host.archived() == host.names()[:-1]  # the store has them
    from cdc.store.retention.cleaner import remove_until

    remove_until(host.store, all_seqs(host.store)[20])
    removed = len(host.archived()) + 1 - len(host.names())
    assert removed > 0
    Archiver(later.config, clock=in_a_month).run(everything=True)
    assert host.archived() == host.names()[:-1]
    objects = len(list(host.archive_folder.rglob("*.binlog")))
    for n in range(KEPT_STATES + 1):  # until no state names them
        host.ack(all_seqs(host.store)[-1] + n)
        Archiver(later.config, clock=in_a_month).run(everything=True)
    assert len(list(host.archive_folder.rglob("*.binlog"))) == objects - removed
    assert len(host.archive().numbers()) == KEPT_STATES
    assert verify(host.archive()).faults == []


# --- two stores at one archive


def test_a_copy_of_a_store_is_refused(host: Host, tmp_path: Path) -> None:
    host.upload()
    twin = copied(host, tmp_path / "twin")
    twin.upload()  # the session was the same: whichever comes first goes on
    host.fill(40, first=60)
    with pytest.raises(IdentityError, match=r"another store writes to this archive.*cdc archive claim shop"):
        host.upload()
    assert "another store" in read_record(host.store).error
    with FileMeta(host.config.meta.path, "shop") as meta:
        assert make_cleaner(host.config, meta).run().removal.removed == ()
    Archiver(host.config).claim()
    assert host.upload().error == ""
    assert host.archived() == host.names()[:-1]
    twin.log = host.log
    twin.fill(10, first=100)
    with pytest.raises(IdentityError, match="another store writes"):
        twin.upload()


def test_a_lost_machine_that_is_not_lost(host: Host, other: Host) -> None:
    running = Archiver(host.config)
    running.run()
    restore(other.config)
    host.fill(40, first=60)
    with pytest.raises(IdentityError, match=r"another store writes.*restored"):
        running.run()
    with pytest.raises(IdentityError, match=r"another store writes"):  # by a look at the archive, too
        running.run()
    assert verify(host.archive()).faults == []
    assert host.archived() == other.names()


def test_a_drill_leaves_the_archive_alone(host: Host, other: Host) -> None:
    running = Archiver(host.config)
    running.run()
    before = content(host.archive_folder)
    assert not restore(other.config, claim=False).writer
    assert content(host.archive_folder) == before
    require_same_store(other, host)
    with pytest.raises(IdentityError, match="another store writes"):
        other.upload()
    host.fill(40, first=60)
    running.run()
    assert host.archived() == host.names()[:-1]


def test_a_standby_takes_over(host: Host, tmp_path: Path) -> None:
    write_epoch(host.store, LeadershipEpoch(1, "a" * 32, "master"))
    host.upload()
    standby = make_host(tmp_path / "standby", host.archive_folder)
    standby.log = host.log
    # It has a part of what the master had archived, and cuts its segments elsewhere.
    filler = GoingOn(standby.store, segment_bytes=SEGMENT_BYTES * 2)
    filler.put(host.log)
    filler.close()
    standby.ack(all_seqs(host.store)[30])
    before = host.archived()
    write_epoch(standby.store, LeadershipEpoch(1, "a" * 32, "standby"))
    with pytest.raises(IdentityError, match="another store writes"):
        standby.upload()
    write_epoch(standby.store, LeadershipEpoch(2, "b" * 32, "master", all_seqs(standby.store)[-1]))
    record = standby.upload()
    # The archive never becomes shorter: the standby's segments replace the master's once they reach further.
    if standby.archived() == before:
        assert record.archived_seq < all_seqs(standby.store)[-1]
        filler = GoingOn(standby.store, segment_bytes=SEGMENT_BYTES * 2)
        for n in range(60, 100):
            standby.log.transaction("shop", "orders", [n] * (n % 7 + 1))
        filler.put(standby.log)
        filler.close()
        standby.upload()
    assert standby.archived() == standby.names()[:-1]
    assert verify(standby.archive()).faults == []
    with pytest.raises(IdentityError, match="took over"):
        host.upload()
    third = make_host(tmp_path / "third", host.archive_folder)
    restore(third.config)
    assert all_seqs(third.store) == all_seqs(standby.store)[: len(all_seqs(third.store))]


def test_an_archive_that_was_removed_or_put_back(host: Host, tmp_path: Path) -> None:
    host.upload()
    shutil.copytree(host.archive_folder, tmp_path / "older")
    host.fill(40, first=60)
    host.upload()
    shutil.move(host.archive_folder, tmp_path / "away")
    with pytest.raises(IdentityError, match=r"the archive is empty, and this store has copied \d+ segments"):
        host.upload()
    shutil.move(tmp_path / "older", host.archive_folder)
    with pytest.raises(IdentityError, match="an older copy of the archive was put in its place"):
        host.upload()
    Archiver(host.config).claim()
    assert read_record(host.store).archived_seq == 0
    host.upload()
    assert host.archived() == host.names()[:-1]
    assert verify(host.archive()).faults == []


# --- a gap


def test_what_retention_removed_before_it_was_archived_is_a_gap(host: Host, other: Host) -> None:
    from cdc.store.retention.cleaner import remove_until

    host.upload()
    had = len(host.archived())
    host.fill(100, first=60)
    remove_until(host.store, all_seqs(host.store)[-30])  # an operator did not let it wait for the archive
    host.upload()
    newest = host.archive().newest()
    assert newest is not None
    assert [n for n, segment in enumerate(newest.segments) if segment.gap] == [had]
    done = restore(other.config, everything=True)
    assert done.segments == len(newest.segments) - had
    require_same_store(other, host)


# --- kills


def test_a_kill_at_each_operation(host: Host, tmp_path: Path) -> None:
    at = 0
    for half in (False, True):
        for at in range(200):
            shutil.rmtree(host.archive_folder, ignore_errors=True)
            (host.store / "archive.json").unlink(missing_ok=True)
            with killed_at(at, half=half) as operations:
                try:
                    host.upload()
                except KilledError:
                    pass
                else:
                    break
            newest = host.archive().newest()
            assert newest is None or verify(host.archive()).faults == []
            host.upload()
            assert host.archived() == host.names()[:-1]
            assert verify(host.archive()).faults == []
        assert at > 10, operations


def test_a_restore_that_is_killed_at_each_operation(host: Host, tmp_path: Path) -> None:
    host.upload()
    at = 0
    for at in range(200):
        lost = make_host(tmp_path / f"r{at}", host.archive_folder)
        with killed_at(at):
            try:
                restore(lost.config)
            except KilledError:
                pass
            else:
                break
        if (lost.store / "restoring.json").exists():
            with pytest.raises(DamagedError, match=r"is being restored from its archive, or a restore was cut off"):
                StoreReader(lost.store)
            with pytest.raises(DamagedError, match="cdc archive restore"):
                GoingOn(lost.store)
        with killed_at(-1) as operations:
            restore(lost.config)
        require_same_store(lost, host)
        if at > 12:  # segments that were whole are not copied again
            assert len(operations) < at + 12
        shutil.rmtree(lost.folder)
    assert at > 10


# --- damage


def segment_object(host: Host, number: int) -> Path:
    newest = host.archive().newest()
    assert newest is not None
    return host.archive_folder / "shop" / newest.segments[number].log.object


@pytest.mark.parametrize("how", ["missing", "truncated", "changed"])
def test_a_damaged_object_is_named(host: Host, other: Host, how: str) -> None:
    host.upload()
    path = segment_object(host, 1)
    whole = path.read_bytes()
    path.unlink()
    if how == "truncated":
        path.write_bytes(whole[:-10])
    elif how == "changed":
        path.write_bytes(whole[:-10] + b"x" + whole[-9:])
    text = {"missing": "is missing", "truncated": r"has \d+ bytes, and it was copied with", "changed": "checksum"}[how]
    faults = verify(host.archive()).faults
    assert len(faults) == 1 and path.name in faults[0]
    with pytest.raises(DamagedError, match=text) as caught:
        restore(other.config)
    assert path.name in str(caught.value)
    assert not (other.store / "store.json").exists()
    with pytest.raises(DamagedError, match="is being restored"):
        GoingOn(other.store)
    path.write_bytes(whole)
    restore(other.config)
    require_same_store(other, host)


def test_a_damaged_state_is_refused(host: Host, other: Host) -> None:
    host.upload()
    host.upload()
    path = max(host.archive_folder.glob("shop/states/*.json"))
    whole = path.read_text()
    path.write_text(whole.replace('"destination": "shop"', '"destination": "shap"'))
    for act in (lambda: restore(other.config), host.upload):
        with pytest.raises(DamagedError, match=rf"{path.name}: its checksum is wrong.*remove it"):
            act()
    path.unlink()  # the state before it holds
    restore(other.config, claim=False)
    path.write_text(whole)
    document = json.loads(whole)
    document["version"] = 2
    path.write_text(json.dumps(document))
    with pytest.raises(Exception, match="has format version 2; this Towpath knows 1"):
        host.upload()


def test_a_damaged_segment_is_not_archived(host: Host) -> None:
    segment = segments_folder(host.store) / host.names()[1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-30] + b"x" + whole[-29:])
    with pytest.raises(DamagedError, match=segment.name):
        host.upload()
    assert read_record(host.store).failing_since_us > 0
    segment.write_bytes(whole)
    assert host.upload().failing_since_us == 0
    assert host.archived() == host.names()[:-1]


def test_a_loss_that_the_archive_does_not_have(host: Host, other: Host) -> None:
    """A segment is damaged after it was archived, and the operator accepts the loss here."""
    from cdc.store.recovery.salvage import salvage

    host.upload()
    every = all_seqs(host.store)
    segment = segments_folder(host.store) / host.names()[1]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-30] + b"x" + whole[-29:])
    salvage(host.store, segment.name)
    host.upload()
    restore(other.config)
    assert json.loads((other.store / "damaged.json").read_text())["ranges"] == []
    assert (segments_folder(other.store) / segment.name).read_bytes() == whole
    assert all_seqs(other.store) == every[: len(all_seqs(other.store))]


# --- refusals


def test_a_folder_that_is_not_empty(host: Host, other: Host) -> None:
    host.upload()
    other.fill(3)
    before = content(other.store)
    with pytest.raises(UsageError, match="this folder is not empty"):
        restore(other.config)
    assert content(other.store).keys() - before.keys() <= {"lock"}
    with pytest.raises(UsageError, match="this folder is not empty"):
        restore(host.config)


def test_a_meta_that_is_there_is_kept(host: Host, other: Host) -> None:
    host.upload()
    other.ack(all_seqs(host.store)[50])
    assert restore(other.config).meta == "kept"
    assert FileMeta(other.config.meta.path, "shop").cursor("apply") == all_seqs(host.store)[50]


def test_nothing_to_restore(host: Host, other: Host) -> None:
    with pytest.raises(ConfigError, match="there is no archive of this destination"):
        restore(other.config)
    other.fill(2)
    other.upload()
    shutil.rmtree(other.store)
    with pytest.raises(UsageError, match="no finished segment yet"):
        restore(other.config)
    assert not (other.store / "restoring.json").exists()


def test_an_archive_that_is_away(host: Host, tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("in the way")
    with pytest.raises((RetryableError, ConfigError)):
        host.upload()
    assert read_record(host.store).error
    (tmp_path / "archive").unlink()
    assert host.upload().error == ""


# --- old ranges


def test_what_the_store_removed_is_read_from_the_archive(host: Host, tmp_path: Path) -> None:
    from cdc.copies.archive.reader import ArchivedReader
    from cdc.store.reader.batch_builder import Limits
    from cdc.store.retention.cleaner import remove_until

    def taken(reader: StoreReader, most: int) -> list[bytes]:
        bodies, after = [], 0
        while (selection := reader.select(after, Limits(max_transactions=most))) is not None:
            for path, offset, length in selection.ranges:
                assert len(reader.entries(path, offset, length))
                bodies.append(path.read_bytes()[offset : offset + length])
            after = selection.last_seq
            reader.release(selection)
        return bodies

    whole = taken(StoreReader(host.store), 7)
    every, early = all_seqs(host.store), all_seqs(host.store)[8]
    time_us = int(StoreReader(host.store).entry_at(every[40])["commit_time_us"])  # type: ignore[index]
    before = StoreReader(host.store).find_by_commit_time(time_us)
    host.upload()
    with killed_at(-1) as operations:
        assert taken(ArchivedReader(host.config), 7) == whole
    assert operations == []  # the store has everything
    schemas_folder(host.store).joinpath(f"{every[30]}.json").write_text('{"version": 1, "tables": {}, "unsure": {}}')
    host.upload()
    remove_until(host.store, every[35])
    with pytest.raises(CutOffError):
        taken(StoreReader(host.store), 7)
    reader = ArchivedReader(host.config)
    assert (reader.removed_seq(), reader.first_seq()) == (0, every[0])
    assert reader.segment_starts()[0] == 17179869188
    assert b"".join(taken(reader, 7)) == b"".join(whole)
    assert reader.find_by_commit_time(time_us) == before
    assert reader.backlog(0).transactions == len(every)
    assert list((host.store / "archived").glob("*/*.binlog")) == []  # released with their batches
    path = reader.schema_path(early)
    assert path is not None and path.name == "4.json"

    segment_object(host, 0).unlink()
    with pytest.raises(DamagedError, match="this object of the archive is missing"):
        taken(ArchivedReader(host.config), 7)
    shutil.rmtree(host.archive_folder)
    assert ArchivedReader(host.config).removed_seq() == read_removed(host.store).seq
    with pytest.raises(CutOffError, match="neither in the store nor in its archive"):
        ArchivedReader(host.config).require_kept(early)
    host.archive_folder.write_text("in the way")
    with pytest.raises(RetryableError, match="the archive cannot be read"):
        ArchivedReader(host.config).removed_seq()
    later = ArchivedReader(host.config, keep=True)  # for readers that may need nothing of it
    assert later.removed_seq() == read_removed(host.store).seq
    later.require_kept(every[-1])
    with pytest.raises(RetryableError, match="the archive cannot be read"):
        later.require_kept(early)


def test_a_range_is_copied_to_a_folder(host: Host, tmp_path: Path) -> None:
    from cdc.copies.archive.fetch import fetch

    host.upload()
    every = all_seqs(host.store)
    done = fetch(host.config, tmp_path / "range", every[10], every[20])
    assert set(every[10:21]) <= set(all_seqs(tmp_path / "range")) < set(every)
    assert done.segments == len(list_segments(tmp_path / "range"))
    assert StoreReader(tmp_path / "range").exists()
    with pytest.raises(UsageError, match="not empty"):
        fetch(host.config, tmp_path / "range", every[10], every[20])
    with pytest.raises(UsageError, match="has no segment in this range"):
        fetch(host.config, tmp_path / "none", every[-1] + 1)
