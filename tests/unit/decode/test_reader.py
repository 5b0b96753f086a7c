"""Reading through a segment's index: ranges, layouts, whole stores, the command, and the warm-up file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from cdc.base.errors import DamagedError, UsageError
from cdc.decode import DecodeOptions, decode_range, layouts, read
from cdc.decode.jsonl import to_json_lines
from cdc.decode.reader import warm_up, warm_up_file
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.layout import index_path, segment_name, segments_folder
from cdc.testing.binlog import BinlogBuilder
from tests.support.unit_decode import DECODABLE, GOLDEN, TABLE, decode, golden

KIND = "mysql9"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one segment, made of a golden file."""
    segments_folder(tmp_path).mkdir()
    segment = segments_folder(tmp_path) / segment_name(0, 1, 4)
    shutil.copyfile(GOLDEN / f"decode-{KIND}.binlog", segment)
    index_path(segment).write_bytes(make_header() + seal(golden(KIND).entries))
    return tmp_path


def segment_of(store: Path) -> Path:
    return next(segments_folder(store).glob("*.binlog"))


def test_ranges_make_up_the_whole(store: Path) -> None:
    whole = decode(golden(KIND))
    batches: list[pa.RecordBatch] = []
    for entry in golden(KIND).entries:
        offset, length = int(entry["offset"]), int(entry["length"])
        batches += decode_range(
            segment_of(store), offset, length, table=TABLE, options=DecodeOptions(columns=DECODABLE)
        )
    assert pa.Table.from_batches(batches).equals(whole)


def test_limits_by_seq(store: Path) -> None:
    entries = golden(KIND).entries
    offset = int(entries["offset"][0])
    length = int(entries["offset"][-1] + entries["length"][-1]) - offset
    seqs = entries["seq"].tolist()
    rows = pa.Table.from_batches(
        decode_range(
            segment_of(store),
            offset,
            length,
            table=TABLE,
            options=DecodeOptions(columns=["id"], after_seq=seqs[0], upto_seq=seqs[1]),
        )
    )
    assert set(rows.column("_seq").to_pylist()) == {seqs[1]}


def test_a_range_inside_a_transaction_is_refused(store: Path) -> None:
    entry = golden(KIND).entries[0]
    with pytest.raises(DamagedError):
        list(decode_range(segment_of(store), int(entry["offset"]), int(entry["length"]) - 1, table=TABLE))


def test_layouts(store: Path) -> None:
    entries = golden(KIND).entries
    part = (segment_of(store), int(entries["offset"][0]), int(entries["length"][0]))
    layout_by_table = layouts([part], [TABLE, "shop.other", "shop.none"])
    assert set(layout_by_table) == {TABLE, "shop.other"}
    assert layout_by_table[TABLE].primary_key == ("nm", "id")
    assert layout_by_table["shop.other"].arrow_schema("both").names[-2:] == ["id", "_before"]


def test_a_whole_store(store: Path) -> None:
    assert pa.Table.from_batches(read(store, table=TABLE, options=DecodeOptions(columns=DECODABLE))).equals(
        decode(golden(KIND))
    )
    with pytest.raises(UsageError, match="not a store"):
        list(read(store / "segments", table=TABLE))


def test_json_lines() -> None:
    table = decode(golden(KIND), images="both")
    lines = "".join(to_json_lines(batch) for batch in table.to_batches()).splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == table.num_rows
    first = rows[0]
    assert (first["_op"], first["u64"], first["large"]) == (
        "insert",
        "18446744073709551615",
        "1234567890123456789012345678.0123456789",
    )
    assert (first["day"], first["dt"], first["ts"]) == (
        "2024-02-29",
        "1969-12-31T23:59:59.000000",
        "2024-02-29T12:34:56.123456Z",
    )
    assert (first["txt"], first["bl"], first["f"], first["_before"]) == ("Straße 😀", "fffefd", 1.5, None)
    assert rows[3]["_before"]["txt"] == "Straße 😀"
    assert rows[2]["u8"] is None


def test_json_lines_escape() -> None:
    text = 'quote " back \\ line \n bell \x07'
    batch = pa.record_batch({"_op": pa.array([1], pa.int8()), 'na"me': pa.array([text])})
    assert json.loads(to_json_lines(batch)) == {"_op": "insert", 'na"me': text}


def test_command(store: Path, tmp_path: Path) -> None:
    from cdc.cli.main import application

    app = application()

    out = tmp_path / "rows.parquet"
    columns = [part for name in ("id", "txt") for part in ("--column", name)]
    done = CliRunner().invoke(app, ["decode", str(store), "--table", TABLE, *columns])
    assert done.exit_code == 0, done.output
    assert len([line for line in done.stdout.splitlines() if json.loads(line)["_seq"]]) == 11
    done = CliRunner().invoke(app, ["decode", str(store), "--table", TABLE, *columns, "--out", str(out)])
    assert done.exit_code == 0, done.output
    written = pq.read_table(out)
    assert written.column("_op").to_pylist()[:4] == ["insert", "insert", "insert", "update"]
    assert written.num_rows == 11
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    done = CliRunner().invoke(app, ["decode", str(store), "--table", TABLE, *columns, "--format", "table"])
    assert done.exit_code == 0
    assert "changed" in done.stdout


def test_warm_up_file(tmp_path: Path) -> None:
    """The builder of the tests makes the file, and it decodes."""
    log = BinlogBuilder()
    log.transaction("towpath", "warm", [1])
    assert warm_up_file() == log.data
    path = tmp_path / "binlog.000001"
    path.write_bytes(warm_up_file())
    assert [batch.column("id").to_pylist() for batch in read(path, table="towpath.warm")] == [[1]]
    warm_up()
