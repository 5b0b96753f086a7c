# ruff: noqa: DTZ001  (DATETIME has no time zone)
"""Golden binlog files of three servers: known values, and compiled against uncompiled kernels."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.base.errors import DamagedError, UnsupportedTypeError, UsageError
from cdc.decode import DecodeStats, list_tables
from cdc.decode.jsonl import to_json_lines
from cdc.decode.layout import range_layouts
from cdc.decode.transactions import NO_HISTORY
from tests.support.unit_decode import (
    DECODABLE,
    KINDS,
    TABLE,
    TYPED_TABLES,
    changed,
    decode,
    decode_typed,
    find_events,
    golden,
    shown_values,
    typed,
    uncompiled,
)

ROW_EVENTS = {23, 24, 25, 30, 31, 32}

FIRST: dict[str, Any] = {
    "i8": -128, "u8": 255, "i16": -32768, "u16": 65535, "i24": -8388608, "u24": 16777215, "i32": -2147483648, "u32": 4294967295,
    "id": -9223372036854775808, "u64": Decimal(18446744073709551615), "f": 1.5, "d": -2.25, "small": Decimal("-1234567890.12"),
    "large": Decimal("1234567890123456789012345678.0123456789"), "day": date(2024, 2, 29), "dt": datetime(1969, 12, 31, 23, 59, 59),
    "dt3": datetime(9999, 12, 31, 23, 59, 59, 999000), "ts": datetime(2024, 2, 29, 12, 34, 56, 123456, UTC), "txt": "Straße 😀",
    "nm": "ab", "lat": "Grüße €", "bin": b"ab\0\0\0\0", "vb": b"\0\xff", "bl": b"\xff\xfe\xfd", "en": "drei €",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_known_values(kind: str) -> None:
    stats = DecodeStats()
    rows = decode(golden(kind), stats=stats).to_pylist()
    assert {name: rows[0][name] for name in DECODABLE} == FIRST
    assert [r["_op"] for r in rows] == [1, 1, 1, 2, 2, 2, 0, 2, 0, 0, 0]
    assert all(rows[2][name] is None for name in DECODABLE if name not in ("i8", "id", "nm"))
    assert [r["i8"] for r in rows[3:6]] == [-64, 64, 0]
    assert (rows[6]["nm"], rows[7]["nm"], rows[6]["_row"] == rows[7]["_row"]) == ("ef", "gh", True)
    assert rows[1]["day"] is rows[1]["dt"] is None
    assert stats.null_dates == {"day": 3, "dt": 3}
    assert rows[0]["_gtid"] is not None


@pytest.mark.parametrize("kind", KINDS)
def test_old_rows(kind: str) -> None:
    rows = decode(golden(kind), images="both").to_pylist()
    assert [r["_op"] for r in rows] == [1, 1, 1, 2, 2, 2, 2, 0, 0, 0]
    assert all(r["_before"] is None for r in rows[:3])
    assert rows[3]["_before"] == FIRST
    assert rows[6]["_before"]["nm"] == "ef"
    assert all({name: r[name] for name in DECODABLE} == r["_before"] for r in rows[7:])


@pytest.mark.parametrize("images", ["after", "both"])
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_and_uncompiled_agree(kind: str, images: str) -> None:
    compiled = decode(golden(kind), images=images)
    with uncompiled():
        plain = decode(golden(kind), images=images)
    assert plain.equals(compiled)
    assert plain.num_rows >= 10


@pytest.mark.parametrize("kind", KINDS)
def test_table_maps_are_listed_alike(kind: str) -> None:
    compiled = list(range_layouts(golden(kind), dict.fromkeys((TABLE, "shop.other", "shop.none"))))
    with uncompiled():
        plain = list(range_layouts(golden(kind), dict.fromkeys((TABLE, "shop.other", "shop.none"))))
    assert plain == compiled
    assert [layout.table for _, layout, _ in compiled] == [TABLE, "shop.other"]
    assert compiled[0][1].primary_key == ("nm", "id")


@pytest.mark.parametrize("target_bytes", [1, 300, 10**9])
def test_slices_make_no_difference(target_bytes: int) -> None:
    whole = decode(golden("mysql9"))
    parts = decode(golden("mysql9"), target_bytes=target_bytes)
    assert parts.equals(whole)


def test_projection_and_schema() -> None:
    table = decode(golden("mysql9"), columns=["txt", "i8"])
    assert table.schema.names == ["_op", "_seq", "_row", "_commit_time", "_gtid", "i8", "txt"]
    assert table.schema.field("_commit_time").type == pa.timestamp("us", tz="UTC")
    whole = decode(golden("mysql9"))
    assert table.column("txt").equals(whole.column("txt"))


def test_seq_limits() -> None:
    seqs = decode(golden("mysql9")).column("_seq").unique().to_pylist()
    assert len(seqs) == 3
    part = golden("mysql9").between(seqs[0], seqs[1])
    assert decode(part).column("_seq").unique().to_pylist() == [seqs[1]]


def test_unsupported_column_is_named() -> None:
    """With an unknown collation of one column, all other columns can be decoded."""
    pos, length = next(find_events(golden("mysql9"), {19}))
    collations = b"\x03\x0a\xfc\xff\x00\xfc\xff\x00"
    at = pos + golden("mysql9").buf[pos : pos + length].tobytes().index(collations) + 4

    def change(buf: Any) -> None:
        buf[at] = 15

    damaged = changed(golden("mysql9"), change)
    why = (
        r"table shop\.every: the column txt has the type VARCHAR in the unknown collation 4095, which cannot be decoded"
    )
    with pytest.raises(UnsupportedTypeError, match=why):
        decode(damaged, columns=None)


@pytest.mark.parametrize(("kind", "table"), TYPED_TABLES)
def test_every_type_as_select_shows_it(kind: str, table: str) -> None:
    """The JSON lines of the file equal the stored answers of SELECT."""
    shown = shown_values(kind)[table]
    rows = [
        json.loads(line)
        for batch in decode_typed(typed(kind), kind, table, images="both")
        for line in to_json_lines(batch).splitlines()
    ]
    states = {row["id"]: row for row in shown["inserted"]}
    assert [own(row) for row in rows[:3]] == shown["inserted"]
    assert [row["_before"] for row in rows[:3]] == [None] * 3
    steps = [shown["updated"], *(shown[name] for name in sorted(shown) if name.startswith("patched"))]
    changes = rows[3:]
    for step in steps:
        by_id = {row["id"]: row for row in step}
        for row in changes[: 3 if step is steps[0] else 1]:
            assert row["_op"] == "update"
            assert row["_before"] == states[row["_before"]["id"]]
            assert own(row) == by_id[row["id"]]
        changes = changes[3 if step is steps[0] else 1 :]
        states = by_id
    assert [row["_op"] for row in changes] == ["delete"] * 3
    assert [own(row) for row in changes] == steps[-1] == [row["_before"] for row in changes]
    assert len(shown["inserted"][0]) >= (8 if table == "old" else 57)


def test_partial_updates_are_in_the_golden_file() -> None:
    assert len(list(find_events(typed("mysql9"), {39}))) == 2


def own(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if not name.startswith("_")}


@pytest.mark.parametrize("images", ["after", "both"])
@pytest.mark.parametrize(("kind", "table"), TYPED_TABLES)
def test_compiled_and_uncompiled_agree_on_every_type(kind: str, table: str, images: str) -> None:
    compiled = pa.Table.from_batches(decode_typed(typed(kind), kind, table, images=images))
    with uncompiled():
        plain = pa.Table.from_batches(decode_typed(typed(kind), kind, table, images=images))
    assert plain.equals(compiled)
    assert plain.num_rows >= 9


def test_old_storage_without_a_schema_says_what_is_missing() -> None:
    with pytest.raises(DamagedError, match=r"column ots3 .*; or ots, a time in MariaDB's old storage, has a fraction"):
        list(decode_typed(typed("mariadb11"), "mariadb11", "old", history=NO_HISTORY))


def test_row_counts_by_table() -> None:
    path = typed("mariadb10").path
    assert list_tables(path) == {"shop.kinds": 7, "shop.old": 7}
    assert list_tables(path, golden("mysql9").path) == {
        "shop.kinds": 7,
        "shop.old": 7,
        "shop.every": 4,
        "shop.other": 1,
    }
    with uncompiled():
        assert list_tables(path) == {"shop.kinds": 7, "shop.old": 7}


def test_unknown_column_is_named() -> None:
    with pytest.raises(UsageError, match="no column nix"):
        decode(golden("mysql9"), columns=["nix"])


def test_wrong_checksum_is_found() -> None:
    pos, _ = next(find_events(golden("mysql9"), ROW_EVENTS))
    broken = np.array(golden("mysql9").buf)
    broken[pos + 60] ^= 1
    transactions = type(golden("mysql9"))(golden("mysql9").path, broken, True, golden("mysql9").entries)
    with pytest.raises(DamagedError, match=rf"decode-mysql9.binlog, position {pos}: the event fails its checksum"):
        decode(transactions)


def test_what_is_no_partial_update_is_refused() -> None:
    pos, _ = next(find_events(golden("mysql9"), {31}))

    def change(buf: Any) -> None:
        buf[pos + 4] = 39

    with pytest.raises(DamagedError, match=rf"row event at {pos}, byte \d+, table shop\.every"):
        decode(changed(golden("mysql9"), change))


def test_too_large_enum_member_is_named() -> None:
    pos, length = next(find_events(golden("mysql9"), {30}))
    raw = golden("mysql9").buf[pos : pos + length].tobytes()
    at = pos + raw.index(b"\xff\xfe\xfd") + 3

    def change(buf: Any) -> None:
        assert buf[at] == 3
        buf[at] = 4

    with pytest.raises(DamagedError, match=rf"row event at {pos}, byte {at}, table shop.every, column en"):
        decode(changed(golden("mysql9"), change))


def test_bytes_that_are_no_utf8_are_question_marks() -> None:
    pos, length = next(find_events(golden("mysql9"), {30}))
    raw = golden("mysql9").buf[pos : pos + length].tobytes()
    at = pos + raw.index("😀".encode())

    def change(buf: Any) -> None:
        buf[at + 1] = 0x20

    rows = decode(changed(golden("mysql9"), change))
    assert rows.column("txt")[0].as_py() == "Straße ? ??"
