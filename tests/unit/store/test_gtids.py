"""The GTIDs of a store: sets of index entries, and ``gtids.json``."""

from __future__ import annotations

import json
import random
import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import DamagedError, VersionError
from cdc.binlog.entry import ENTRY, Entries
from cdc.binlog.gtids import GtidSet, format_state, parse_state, show_state, state_name
from cdc.store.formats.gtids import (
    GTIDS_FILE,
    GtidCheckpoint,
    entries_with,
    gtids_of,
    gtids_until,
    lacks_some,
    numbers_of,
    read_checkpoints,
    record_missing,
    write_checkpoint,
)

GOLDEN = Path(__file__).parents[2] / "golden"
A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def entries(*gtids: tuple[bytes, str, int, int]) -> Entries:
    """Returns entries of (source, tag, last number, count)."""
    made = np.zeros(len(gtids), dtype=ENTRY)
    for entry, (source, tag, number, count) in zip(made, gtids, strict=True):
        entry["gtid_source"], entry["gtid_tag"] = np.void(source), tag.encode()
        entry["gtid_number"], entry["gtid_count"] = number, count
    return made


def mariadb(domain: int, server: int) -> bytes:
    return domain.to_bytes(4, "little") + server.to_bytes(4, "little") + bytes(8)


def test_random_entries_give_the_set_of_their_gtids() -> None:
    rng = random.Random(7)
    for _ in range(50):
        single: set[tuple[str, int]] = set()
        made = []
        for _ in range(rng.randrange(40)):
            source, tag = rng.choice([A, B]), rng.choice(["", "", "tag"])
            last = rng.randrange(1, 60)
            count = rng.randrange(0, min(last, 9) + 1)
            made.append((source.bytes, tag, last, count))
            single |= {(f"{source}{':' + tag if tag else ''}", number) for number in range(last - count + 1, last + 1)}
        gtid_set = gtids_of(entries(*made), "mysql")
        assert {
            (name, n) for name, runs in gtid_set.sources() for low, high in runs for n in range(low, high + 1)
        } == single
        assert GtidSet.parse(str(gtid_set)) == gtid_set


def test_a_state_of_mariadb_has_the_last_number_of_each_server() -> None:
    gtid_set = gtids_of(
        entries((mariadb(0, 1), "", 7, 2), (mariadb(0, 2), "", 9, 1), (mariadb(0, 1), "", 8, 1), (bytes(16), "", 0, 0)),
        "mariadb",
    )
    assert format_state(gtid_set, "mariadb") == "0-1-8,0-2-9"
    numbers = numbers_of(entries((mariadb(7, 42), "", 12, 3), (mariadb(7, 42), "", 15, 1)), "mariadb")
    assert dict(numbers.sources()) == {"7-42": ((10, 12), (15, 15))}
    assert parse_state("0-2-9,0-1-8", "mariadb") == gtid_set
    assert state_name("0-1-8", "mariadb") in gtid_set and state_name("0-1-9", "mariadb") not in gtid_set
    assert show_state(parse_state("0-1-12", "mariadb") - gtid_set, "mariadb") == "0-1-9 to 0-1-12"
    assert not parse_state("0-3-1", "mariadb") <= gtid_set


def test_entries_with_one_of_the_gtids() -> None:
    made = entries(
        (A.bytes, "", 5, 5), (A.bytes, "", 6, 1), (A.bytes, "x", 6, 1), (B.bytes, "", 6, 1), (A.bytes, "", 0, 0)
    )
    assert entries_with(made, GtidSet.parse(f"{A}:6"), "mysql")["gtid_number"].tolist() == [6]
    assert len(entries_with(made, GtidSet.parse(f"{A}:4-6,{B}:6"), "mysql")) == 3
    assert len(entries_with(made, GtidSet.parse(f"{A}:x:6"), "mysql")) == 1
    theirs = entries((mariadb(0, 1), "", 7, 2), (mariadb(1, 1), "", 7, 1))
    assert len(entries_with(theirs, parse_state("0-1-9", "mariadb") - parse_state("0-1-6", "mariadb"), "mariadb")) == 1


def test_checkpoints_are_kept_and_replaced(tmp_path: Path) -> None:
    for seq in range(1, 30):
        write_checkpoint(tmp_path, "mysql", GtidCheckpoint(seq, GtidSet.parse(f"{A}:1-{seq}")))
    assert [checkpoint.seq for checkpoint in read_checkpoints(tmp_path, "mysql")] == list(range(14, 30))
    write_checkpoint(tmp_path, "mysql", GtidCheckpoint(20, GtidSet.parse(f"{A}:1-7")))
    assert [checkpoint.seq for checkpoint in read_checkpoints(tmp_path, "mysql")][-2:] == [19, 20]
    assert gtids_until(tmp_path, "mysql", 20) == GtidSet.parse(f"{A}:1-7")
    assert gtids_until(tmp_path, "mysql", 15) == GtidSet.parse(f"{A}:1-15")
    assert gtids_until(tmp_path, "mysql", 13) is None


def test_missing_gtids_are_remembered_until_the_source_has_told_them(tmp_path: Path) -> None:
    record_missing(tmp_path)
    assert not (tmp_path / GTIDS_FILE).exists() and not lacks_some(tmp_path)
    write_checkpoint(tmp_path, "mysql", GtidCheckpoint(1, GtidSet.parse(f"{A}:1")))
    assert not lacks_some(tmp_path)
    record_missing(tmp_path)
    assert lacks_some(tmp_path) and gtids_until(tmp_path, "mysql", 1) == GtidSet.parse(f"{A}:1")
    write_checkpoint(tmp_path, "mysql", GtidCheckpoint(2, GtidSet.parse(f"{A}:1:3")))
    assert lacks_some(tmp_path)
    write_checkpoint(tmp_path, "mysql", GtidCheckpoint(3, GtidSet.parse(f"{A}:1-3")), is_complete=True)
    assert not lacks_some(tmp_path)


def test_a_store_without_checkpoints_knows_no_gtids(tmp_path: Path) -> None:
    assert gtids_until(tmp_path, "mysql", 5) is None


def test_version_1_is_read(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "gtids-v1.json", tmp_path / GTIDS_FILE)
    checkpoints = read_checkpoints(tmp_path, "mysql")
    assert [checkpoint.seq for checkpoint in checkpoints] == [206158431791, 36028797018968687]
    assert checkpoints[-1].gtids.last("81a3c8d4-e76c-11f1-9013-02fc00000001:tag") == 1


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 1}', '{"version": 1, "flavor": "mysql", "checkpoints": [3]}']
)
def test_damage_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / GTIDS_FILE).write_text(content)
    with pytest.raises(DamagedError, match=r"gtids\.json"):
        read_checkpoints(tmp_path, "mysql")


def test_a_newer_version_and_another_product_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "mysql", GtidCheckpoint(1, GtidSet()))
    with pytest.raises(DamagedError, match="mysql"):
        read_checkpoints(tmp_path, "mariadb")
    document = json.loads((tmp_path / GTIDS_FILE).read_text())
    (tmp_path / GTIDS_FILE).write_text(json.dumps({**document, "version": 2}))
    with pytest.raises(VersionError):
        read_checkpoints(tmp_path, "mysql")
