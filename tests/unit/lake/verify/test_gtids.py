"""Sets of GTIDs made from index entries, and MariaDB's state."""

from __future__ import annotations

import uuid

import numpy as np

from cdc.binlog.entry import ENTRY, Entries, EntryFlag
from cdc.lake.verify.gtids import gtids_of, parse_mariadb

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def entries(*gtids: tuple[str, int, int], tag: str = "", flags: int = 0) -> Entries:
    """Entries by UUID, last number and count."""
    made = np.zeros(len(gtids), dtype=ENTRY)
    for i, (source, number, count) in enumerate(gtids):
        made[i]["gtid_source"] = np.void(uuid.UUID(source).bytes)
        made[i]["gtid_number"], made[i]["gtid_count"] = number, count
        made[i]["gtid_tag"], made[i]["flags"] = tag.encode(), flags
    return made


def test_entries_with_counts_tags_and_without_gtids() -> None:
    made = [
        entries((A, 3, 3), (A, 4, 1), (B, 9, 2)),
        entries((A, 7, 1)),
        entries((A, 5, 1), tag="t"),
        entries((A, 0, 0)),
    ]
    assert dict(gtids_of(made).sources()) == {A: ((1, 4), (7, 7)), B: ((8, 9),), f"{A}:t": ((5, 5),)}


def test_mariadbs_entries_are_named_by_domain_and_server() -> None:
    made = np.zeros(1, dtype=ENTRY)
    made["gtid_source"] = np.void((7).to_bytes(4, "little") + (42).to_bytes(4, "little") + bytes(8))
    made["gtid_number"], made["gtid_count"], made["flags"] = 12, 3, int(EntryFlag.GTID_MARIADB)
    assert dict(gtids_of([made]).sources()) == {"7-42": ((10, 12),)}
    assert parse_mariadb("0-1-5,0-2-9") == {"0-1": 5, "0-2": 9}
