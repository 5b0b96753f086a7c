"""MariaDB's compressed row events decode to the rows of uncompressed ones, and damage in them is damage."""

from __future__ import annotations

import random
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.base.errors import DamagedError
from cdc.binlog.constants import EventType
from cdc.decode.layout import list_tables, survey
from cdc.decode.reader import DecodeOptions, decode_transactions, read
from cdc.decode.scan import split_transaction
from cdc.decode.transactions import open_paths
from cdc.testing.binlog import BinlogBuilder
from tests.support.rare_events import compressed_rows
from tests.support.unit_decode import uncompiled

BOTH = DecodeOptions(images="both")
INSERT, UPDATE, DELETE = (
    (EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1, EventType.MARIADB_WRITE_ROWS_COMPRESSED),
    (EventType.MARIADB_UPDATE_ROWS_COMPRESSED_V1, EventType.MARIADB_UPDATE_ROWS_COMPRESSED),
    (EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1, EventType.MARIADB_DELETE_ROWS_COMPRESSED),
)


def written(folder: Path, log: BinlogBuilder) -> Path:
    path = folder / "binlog.000001"
    path.write_bytes(log.data)
    return path


def one_event(kind: int, *, packed: bytes | None = None) -> BinlogBuilder:
    log = BinlogBuilder()
    log.gtid()
    log.query("BEGIN")
    log.table_map("shop", "orders")
    compressed_rows(log, kind, "shop", "orders", [10, 20, 30], packed=packed)
    log.xid()
    return log


@pytest.mark.parametrize("version", [0, 1])
def test_each_type_decodes(tmp_path: Path, version: int) -> None:
    expected = {
        INSERT: [(1, 10, None), (1, 20, None), (1, 30, None)],
        UPDATE: [(2, 10, 9), (2, 20, 19), (2, 30, 29)],
        DELETE: [(0, 10, 10), (0, 20, 20), (0, 30, 30)],
    }
    for kinds, changes in expected.items():
        path = written(tmp_path, one_event(kinds[version]))
        rows = pa.Table.from_batches(list(read(path, table="shop.orders", options=BOTH))).to_pylist()
        decoded = [(row["_op"], row["id"], None if row["_before"] is None else row["_before"]["id"]) for row in rows]
        assert decoded == changes
        assert [row["_row"] for row in rows] == [0, 1, 2]
        assert list_tables(path) == {"shop.orders": 1}


def mixed(seed: int) -> tuple[BinlogBuilder, BinlogBuilder]:
    """One transaction twice: its small events are uncompressed in both, its large ones in the first."""
    rng = random.Random(seed)
    plain, packed = BinlogBuilder(), BinlogBuilder()
    for log in (plain, packed):
        log.gtid()
        log.query("BEGIN")
        log.table_map("shop", "orders")
    for _ in range(60):
        values = [rng.randrange(1 << 30) for _ in range(rng.choice((1, 2, 500)))]
        plain.rows("shop", "orders", values)
        if len(values) > 2:
            compressed_rows(packed, EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1, "shop", "orders", values)
        else:
            packed.rows("shop", "orders", values)
    for log in (plain, packed):
        log.xid()
    return plain, packed


def test_small_events_between_do_not_part_a_batch(tmp_path: Path, seed: int) -> None:
    (tmp_path / "plain").mkdir()
    plain, packed = mixed(seed)
    files = written(tmp_path / "plain", plain), written(tmp_path, packed)
    expected, [batch] = (list(read(file, table="shop.orders")) for file in files)
    assert batch.drop_columns(["_seq"]).equals(
        pa.Table.from_batches(expected).combine_chunks().to_batches()[0].drop_columns(["_seq"])
    )
    with uncompiled():
        [second_batch] = read(files[1], table="shop.orders")
    assert second_batch.equals(batch)


def test_sizes_are_those_of_unpacked_events(tmp_path: Path, seed: int) -> None:
    """Batches, slices and the largest event are measured by what has to be in memory."""
    plain, packed = mixed(seed)
    path = written(tmp_path, packed)
    [(transactions, _, _)] = open_paths([path])
    whole = pa.Table.from_batches(list(decode_transactions(transactions, table="shop.orders")))
    few = list(read(path, table="shop.orders", options=DecodeOptions(target_bytes=4000)))
    assert len(few) > 10 and pa.Table.from_batches(few).equals(whole)
    parts = list(split_transaction(transactions, "shop.orders", 4000))
    assert len(parts) == len(few)
    rows = [batch for part in parts for batch in decode_transactions(transactions, table="shop.orders", part=part)]
    assert pa.Table.from_batches(rows).equals(whole)
    expected = max(len(event) for event in plain.events if event[4] == EventType.WRITE_ROWS)
    (tmp_path / "binlog.000001.index").touch()  # ranges are those of a segment with an index
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdc.decode.layout.open_range", lambda *_: transactions)
        sizes = survey([(path, 0, 0)], ["shop.orders"]).largest_event_bytes
    assert sizes == {"shop.orders": expected - 2}  # version 1 has no extra information


ROWS = b"\0\x0a\0\0\0\0\x14\0\0\0"
DAMAGED = {
    "no rows": (b"", "header is damaged"),
    "method": (b"\x91\x0a" + zlib.compress(ROWS), "header is damaged"),
    "size of the length": (b"\x85\0\0\0\0\x0a" + zlib.compress(ROWS), "header is damaged"),
    "no length": (b"\x84\0", "header is damaged"),
    "not zlib": (b"\x81\x0agarbage", "cannot be unpacked"),
    "nothing": (b"\x81\x0a", "and has 0"),
    "too long": (b"\x81\x09" + zlib.compress(ROWS), "it has 9 bytes, and has more"),
    "too short": (b"\x81\x0b" + zlib.compress(ROWS), "it has 11 bytes, and has 10"),
    "far too short": (b"\x84\xff\xff\xff\xff" + zlib.compress(ROWS), "and has 10"),
    "cut": (b"\x81\x0a" + zlib.compress(ROWS)[:-1], "its stream is cut"),
    "more": (b"\x81\x0a" + zlib.compress(ROWS) + b"x", "bytes follow its stream"),
    "half a row": (b"\x81\x08" + zlib.compress(ROWS[:8]), "reaches beyond the end"),
}


@pytest.mark.parametrize("case", DAMAGED)
@pytest.mark.parametrize("kind", [*INSERT, *UPDATE])
def test_damage_is_an_error_with_its_place(tmp_path: Path, kind: int, case: str) -> None:
    packed, words = DAMAGED[case]
    log = one_event(kind, packed=packed)
    place = 4 + sum(map(len, log.events[:4]))
    with pytest.raises(DamagedError, match=words) as caught:
        list(read(written(tmp_path, log), table="shop.orders"))
    assert f"row event at {place}" in str(caught.value) and "table shop.orders" in str(caught.value)


def test_random_damage_is_an_error_or_decodes(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        clean = zlib.compress(ROWS)
        packed = bytearray(b"\x81\x0a" + clean)
        for _ in range(rng.randint(1, 3)):
            packed[rng.randrange(len(packed))] = rng.randrange(256)
        log = one_event(rng.choice([*INSERT, *DELETE]), packed=bytes(packed))
        try:
            rows = [
                n for batch in read(written(tmp_path, log), table="shop.orders") for n in batch.column("id").to_pylist()
            ]
        except DamagedError:
            continue
        assert rows == [10, 20]  # zlib has a checksum of its own
