"""A store of version 1 of the formats: it is read unchanged, written to, and refused if it names a newer version."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.base.errors import DamagedError, VersionError
from cdc.binlog.entry import EntryFlag, format_gtid
from cdc.binlog.sql.schemas import Schemas
from cdc.decode import decode_range
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.formats.state import TableNumbers
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.writer.log import RelayLog

GOLDEN = Path(__file__).parents[2] / "golden" / "store-v1"
ORDERS, ITEMS = "shop.orders", "shop.items"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A copy that a test may write to."""
    shutil.copytree(GOLDEN, tmp_path / "store")
    return tmp_path / "store"


def contents(store: Path) -> dict[str, bytes]:
    """All files except the locks, which every store gets that is opened for writing."""
    paths = (p for p in sorted(store.rglob("*")) if p.is_file() and p.suffix != ".lock" and p.name != "lock")
    return {str(p.relative_to(store)): p.read_bytes() for p in paths}


def test_entries() -> None:
    first, second = list_segments(GOLDEN)
    assert [p.name for p in (first, second)] == ["000-0000001-00000000004.binlog", "000-0000002-00000000004.binlog"]
    assert [len(IndexFile(segment).entries) for segment in (first, second)] == [6, 6]
    entries = read_entries(second)
    assert entries["seq"].tolist() == [34359739537, 34359739701, 34359739951, 34359740209]
    assert (entries["flags"] & int(EntryFlag.DDL) != 0).tolist() == [False, True, False, False]
    assert entries["row_events"].tolist() == [1, 0, 1, 1]
    assert (format_gtid(entries[0]) or "").startswith("0-") and (format_gtid(entries[0]) or "").endswith("-9")
    assert IndexFile(first).is_whole() and IndexFile(second).is_whole()


def test_select_and_decode() -> None:
    reader, after, shapes = StoreReader(GOLDEN), 0, []
    while (selection := reader.select(after, Limits())) is not None:
        shapes.append((selection.transactions, selection.row_events, selection.ddl, selection.tables))
        after = selection.last_seq
    assert shapes == [
        (2, 0, True, (ORDERS, ITEMS)),
        (3, 3, False, (ORDERS, ITEMS)),
        (1, 0, True, (ITEMS,)),
        (2, 2, False, (ORDERS, ITEMS)),
    ]
    assert after == reader.last_seq() == 34359740429
    assert reader.totals().transactions == reader.backlog(0).transactions == 8
    state = reader.capture_state()
    assert state is not None and (state.file, state.pos, state.running) == ("binlog.000002", 2061, False)


def test_decode() -> None:
    rows: list[tuple[str, int, object]] = []
    for segment in list_segments(GOLDEN):
        entries = read_entries(segment)
        offset = int(entries["offset"][0])
        length = int(entries["offset"][-1] + entries["length"][-1]) - offset
        for table, column in ((ORDERS, "price"), (ITEMS, "id")):
            for batch in decode_range(segment, offset, length, table=table):
                rows += [(table, row["_op"], row[column]) for row in batch.to_pylist()]
    assert [(table, op, str(value)) for table, op, value in rows] == [
        (ORDERS, 1, "12.50"),
        (ORDERS, 1, "3.20"),
        (ITEMS, 1, "4000000000"),
        (ORDERS, 2, "13.00"),
        (ORDERS, 0, "3.20"),
        (ITEMS, 1, "7"),
    ]


def test_schemas_and_numbers() -> None:
    path = StoreReader(GOLDEN).schema_path(1 << 62)
    assert path is not None
    schemas = Schemas.load(path)
    assert [column.name for column in schemas.tables[ITEMS].columns] == ["id", "note"]
    assert schemas.tables[ORDERS].primary_key == ("id",)
    assert TableNumbers(GOLDEN).names == [ORDERS, ITEMS]


def test_a_writer_goes_on_with_it(store: Path) -> None:
    before = contents(store)
    log = RelayLog(store, destination="shop", segment_bytes=65536)
    log.close()
    assert log.last_seq == 34359740429
    after = contents(store)
    assert after.pop("checkpoint") and after == before


@pytest.mark.parametrize("lost", ["all", "last"])
def test_the_index_is_made_anew_from_its_segment(store: Path, lost: str) -> None:
    """The index has the same transactions except for their store times; position entries are not in the log."""
    expected = [read_entries(segment) for segment in list_segments(store)]
    for segment in list_segments(store)[-1 if lost == "last" else 0 :]:
        index_path(segment).unlink()
    RelayLog(store, destination="shop", segment_bytes=65536).close()
    for segment, old in zip(list_segments(store), expected, strict=True):
        new = read_entries(segment)
        for name in ("seq", "offset", "length", "commit_time_us", "events", "row_events", "flags", "checksum"):
            assert new[name].tolist() == old[name].tolist(), name
        for name in ("gtid_source", "gtid_number", "table_mask", "gtid_count"):
            assert new[name].tolist() == old[name].tolist(), name


def test_every_flipped_bit_of_a_transaction_is_found(store: Path) -> None:
    """Also in headers, ids and names, which would make a wanted event look like an unwanted one."""
    segment = list_segments(store)[1]
    entries = read_entries(segment)
    offset = int(entries["offset"][0])
    length = int(entries["offset"][-1] + entries["length"][-1]) - offset
    whole = segment.read_bytes()
    for at in range(offset, offset + length):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        segment.write_bytes(bytes(data))
        with pytest.raises(DamagedError, match=segment.name):
            list(decode_range(segment, offset, length, table=ORDERS))


def test_every_flipped_bit_of_the_format_description_is_found(store: Path) -> None:
    """The format description says whether events have checksums."""
    segment = list_segments(store)[1]
    entries = read_entries(segment)
    offset, length = int(entries["offset"][0]), int(entries["length"][0])
    whole = segment.read_bytes()
    for at in range(4 + int.from_bytes(whole[13:17], "little")):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        segment.write_bytes(bytes(data))
        with pytest.raises(DamagedError, match=segment.name):
            list(decode_range(segment, offset, length, table=ORDERS))


def test_every_flipped_bit_of_an_index_is_found(store: Path) -> None:
    """The selection never differs, except for the last entry of the newest index, which may be being written."""
    indexes = [index_path(segment) for segment in list_segments(store)]
    expected = everything(store)
    for path in indexes:
        whole = path.read_bytes()
        end = len(whole) - (128 if path == indexes[-1] else 0)
        for at in range(end):
            data = bytearray(whole)
            data[at] ^= 1 << at % 8
            path.write_bytes(bytes(data))
            assert everything(store) in (expected, path.name), f"{path.name}, byte {at}"
        path.write_bytes(whole)


def everything(store: Path) -> list[tuple[object, ...]] | str:
    """Returns what a reader gets from the beginning and from the middle, or the damaged file that its error names."""
    try:
        return selections(store)
    except (DamagedError, VersionError) as error:
        return Path(str(error.place)).name


def selections(store: Path) -> list[tuple[object, ...]]:
    selected: list[tuple[object, ...]] = []
    for after in (0, 17179870305):
        reader = StoreReader(store)
        while (selection := reader.select(after, Limits())) is not None:
            selected.append((selection.first_seq, selection.last_seq, selection.tables, selection.ranges))
            after = selection.last_seq
    return selected


def newer_json(name: str) -> Callable[[Path], None]:
    def change(store: Path) -> None:
        for path in store.glob(name):
            document = json.loads(path.read_bytes())
            document["version"] = 3
            path.write_text(json.dumps(document))

    return change


def newer_index(store: Path) -> None:
    path = index_path(list_segments(store)[0])
    data = bytearray(path.read_bytes())
    data[4:6] = (2).to_bytes(2, "little")
    data[124:128] = zlib.crc32(bytes(data[:124])).to_bytes(4, "little")
    path.write_bytes(bytes(data))


NEWER: list[tuple[Callable[[Path], None], Callable[[Path], object]]] = [
    (newer_json("store.json"), lambda store: StoreReader(store)),
    (newer_json("store.json"), lambda store: RelayLog(store, destination="shop", segment_bytes=65536)),
    (newer_json("tables.json"), lambda store: StoreReader(store).select(0, Limits())),
    (newer_json("tables.json"), lambda store: RelayLog(store, destination="shop", segment_bytes=65536)),
    (newer_json("capture.json"), lambda store: StoreReader(store).capture_state()),
    (newer_json("schemas/*.json"), lambda store: Schemas.load(next((store / "schemas").glob("*.json")))),
    (newer_index, lambda store: StoreReader(store).select(0, Limits())),
    (newer_index, lambda store: RelayLog(store, destination="shop", segment_bytes=65536)),
    (newer_index, lambda store: read_entries(list_segments(store)[0])),
]


@pytest.mark.parametrize("number", range(len(NEWER)))
def test_a_newer_version_is_refused(store: Path, number: int) -> None:
    change, use = NEWER[number]
    change(store)
    before = contents(store)
    with pytest.raises(VersionError) as caught:
        use(store)
    assert (
        re.search("version [23]", str(caught.value))
        and str(store) in str(caught.value)
        and "Towpath" in str(caught.value)
    )
    assert contents(store) == before
