"""``cdc decode``: what it prints, writes and says."""

from __future__ import annotations

import itertools
import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.binlog.sql.schemas import ColumnSchema, Schemas, TableSchema
from cdc.cli import main as cli
from cdc.decode import DecodeOptions, list_tables, read
from cdc.decode.jsonl import json_lines, to_json_lines
from cdc.testing.binlog import BinlogBuilder
from tests.support.unit_decode import GOLDEN, golden, schemas_of, shown_values, typed

MYSQL9, MYSQL56, MARIADB11 = (str(typed(kind).path) for kind in ("mysql9", "mysql56", "mariadb11"))
SCHEMA56, SCHEMA11 = (str(GOLDEN / f"decode-types-{kind}-v1.schemas.json") for kind in ("mysql56", "mariadb11"))


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["decode", *arguments])
    out, err = capfd.readouterr()
    return code, out, err


def rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_the_only_table_needs_no_name(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, MYSQL9)
    assert (code, len(rows(out))) == (0, 12)
    assert "zero or impossible dates in column day are null" in err


def test_several_tables_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, MARIADB11)
    assert (code, out) == (2, "")
    assert "shop.kinds (7 row events), shop.old (7 row events)" in err and "--table DB.TABLE" in err


def test_a_table_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, MARIADB11, "--table", "shop.nix")
    assert (code, out) == (0, "")
    assert "0 rows of shop.nix" in err and "shop.kinds (7 row events)" in err


def test_no_rows_at_all(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    begin = int(golden("mysql9").entries["offset"][0])
    (tmp_path / "binlog.000001").write_bytes(golden("mysql9").buf[:begin].tobytes())
    code, _, err = run(capfd, str(tmp_path / "binlog.000001"))
    assert code == 2
    assert "no row events" in err


def test_a_schema_beside_the_file(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, MYSQL56)
    assert code == 2
    assert "table shop.kinds" in err and "--schema" in err
    code, out, _ = run(capfd, MYSQL56, "--schema", SCHEMA56, "--column", "sj", "--column", "u64", "--column", "id")
    shown = shown_values("mysql56")["kinds"]["inserted"]
    assert code == 0
    assert [(row["id"], row["sj"], row["u64"]) for row in rows(out)[:3]] == [
        (r["id"], r["sj"], r["u64"]) for r in shown
    ]
    code, out, _ = run(
        capfd, MARIADB11, "--schema", SCHEMA11, "--table", "shop.kinds", "--column", "uid", "--column", "vec"
    )
    assert rows(out)[0]["uid"] == "6ccd780c-baba-1026-9564-5b8c656024db"
    assert rows(out)[0]["vec"] == [1.5, -2, 0.1]


def test_wrong_schemas(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{}")
    for path, word in (("absent.json", "not a file"), ("s.json", "not a file of table schemas")):
        code, _, err = run(capfd, MYSQL56, "--table", "shop.kinds", "--schema", str(tmp_path / path))
        assert code == 2 and word in err
    code, _, err = run(capfd, MYSQL56, "--table", "shop.nix", "--schema", SCHEMA56)
    assert code == 2 and "does not describe shop.nix" in err and "shop.kinds" in err
    code, _, err = run(capfd, MYSQL56, "--table", "shop.kinds", "--schema", SCHEMA11)
    assert code == 2 and "contradict the stored schema" in err and MYSQL56 in err


def test_limits_by_seq(capfd: pytest.CaptureFixture[str]) -> None:
    seqs = sorted({int(str(row["_seq"])) for row in rows(run(capfd, MYSQL9)[1])})
    assert len(seqs) == 5
    for begin, end, wanted in ((1, 3, seqs[1:4]), (0, 0, seqs[:1]), (4, 4, seqs[4:])):
        _, out, _ = run(capfd, MYSQL9, "--from", str(seqs[begin]), "--to", str(seqs[end]))
        assert sorted({row["_seq"] for row in rows(out)}, key=str) == sorted(wanted, key=str)


def test_zero_dates(capfd: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capfd, MYSQL9, "--zero-dates", "fail")
    assert code == 2
    assert f"{MYSQL9}, row event at " in err and "table shop.kinds, column day (DATE)" in err


def test_a_table_for_people(capfd: pytest.CaptureFixture[str]) -> None:
    columns = [part for name in ("id", "txt", "vb", "vec", "dt") for part in ("--column", name)]
    code, out, _ = run(capfd, MYSQL9, "--format", "table", *columns)
    assert code == 0
    for text in ("insert", "Straße 😀", "00ff5c22", "[1.5, -2, 0.1]", "NULL", "1969-12-31T23:59:59.000000"):
        assert text in out


def test_parquet(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    code, printed, err = run(capfd, MYSQL9, "--before", "--out", str(out))
    assert (code, printed) == (0, "")
    assert f"11 rows of shop.kinds in 9 row events, written to {out}" in err
    written = pq.read_table(out)
    direct = pa.Table.from_batches(read(MYSQL9, table="shop.kinds", options=DecodeOptions(images="both")))
    assert written.drop_columns(["_op"]).equals(direct.drop_columns(["_op"]))
    assert written.column("_op").to_pylist()[2:4] == ["insert", "update"]
    assert os.listdir(tmp_path) == ["rows.parquet"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--out", "rows.json"], "Parquet"),
        (["--out", "rows.parquet", "--format", "table"], "--format"),
        (["--out", "absent/rows.parquet"], "absent/rows.parquet: cannot be written"),
        (["--out", "rows.parquet", "--zero-dates", "fail"], "column day"),
    ],
)
def test_no_half_files(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capfd, MYSQL9, *arguments)
    assert code == (1 if "absent" in arguments[1] else 2)
    assert word in err
    assert os.listdir(tmp_path) == []


def test_an_altered_table_needs_two_files(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The same table in files of two servers, which differ in columns."""
    arguments = [MYSQL9, str(typed("mariadb10").path), "--table", "shop.kinds"]
    code, _, err = run(capfd, *arguments, "--out", str(tmp_path / "rows.parquet"))
    assert code == 2
    assert "shop.kinds is altered inside these files" in err and "--from" in err
    assert os.listdir(tmp_path) == []
    code, out, _ = run(capfd, *arguments)
    assert (code, len(rows(out))) == (0, 22)


def test_json_of_all_kinds() -> None:
    """Values that golden files do not have: numbers that JSON lacks, control characters, pieces, wide decimals."""
    batch = pa.record_batch(
        {
            "_op": pa.array([0, 1, 2, 1], pa.int8()),
            "f": pa.array([float("nan"), float("-inf"), -0.0, None], pa.float64()),
            "v": pa.array([[1.5, None, float("inf")], [], None, [0.1]], pa.list_(pa.float32())),
            "b": pa.array([True, False, None, True]),
            "raw": pa.array([b"\0\xff", b"", None, b"a"], pa.binary()),
            "text": pa.array(['a"\\b', "\x00\x1f\n", None, "ü😀"]),
            "all_null": pa.array([None] * 4, pa.string()),
        }
    )
    expected = [
        {"_op": "delete", "f": "NaN", "v": [1.5, None, "Infinity"], "b": True, "raw": "00ff", "text": 'a"\\b', "all_null": None},
        {"_op": "insert", "f": "-Infinity", "v": [], "b": False, "raw": "", "text": "\x00\x1f\n", "all_null": None},
        {"_op": "update", "f": -0.0, "v": None, "b": None, "raw": None, "text": None, "all_null": None},
        {"_op": "insert", "f": None, "v": [0.1], "b": True, "raw": "61", "text": "ü😀", "all_null": None},
    ]  # fmt: skip
    assert rows(to_json_lines(batch)) == expected
    assert '"f": -0.0,' in to_json_lines(batch)
    for row in range(4):  # rows by themselves are put together in another way
        assert b"".join(json_lines(batch.slice(row, 1))) == to_json_lines(batch).splitlines(keepends=True)[row].encode()
        assert rows(to_json_lines(batch.slice(row))) == expected[row:]
    assert to_json_lines(batch.slice(0, 0)) == ""


def test_large_values_come_in_pieces() -> None:
    batch = pa.record_batch(
        {"_op": pa.array([1, 1, 1], pa.int8()), "raw": pa.array([bytes(40 << 20), b"x", bytes(40 << 20)])}
    )
    pieces = list(json_lines(batch))
    assert max(map(len, pieces)) < 100 << 20
    lines = b"".join(pieces).splitlines()
    assert [len(json.loads(line)["raw"]) for line in lines] == [80 << 20, 2, 80 << 20]


def test_schemas_of_the_golden_files_are_those_of_a_store() -> None:
    assert set(schemas_of("mariadb11").tables) == {"shop.kinds", "shop.old"}


def test_the_example_of_the_documentation() -> None:
    """The library call as docs/how-to/decode.md shows it, with a reader that holds no more than a batch."""
    batches = read(MYSQL9, table="shop.kinds", options=DecodeOptions(columns=["id", "small"], target_bytes=1))
    first = next(batches)
    assert first.schema.names == ["_op", "_seq", "_row", "_commit_time", "_gtid", "id", "small"]
    reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
    sizes = [batch.num_rows for batch in reader]
    assert len(sizes) == 9 and sum(sizes) == 12
    assert list_tables(MYSQL9) == {"shop.kinds": 9}
    seqs = [batch.column("_seq")[0].as_py() for batch in read(MYSQL9, table="shop.kinds")]
    later = read(MYSQL9, table="shop.kinds", schemas=schemas_of("mysql9"), options=DecodeOptions(after_seq=seqs[0]))
    assert pa.Table.from_batches(later).num_rows == 9


def test_pandas_takes_the_batches() -> None:
    frame = pa.Table.from_batches(
        read(MYSQL9, table="shop.kinds", options=DecodeOptions(columns=["id", "txt"]))
    ).to_pandas()
    assert frame["id"].tolist()[:3] == [1, 2, 3]


def test_a_schema_does_not_hold_over_a_statement_that_alters_the_table(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1])
    log.ddl("CREATE INDEX i ON orders (id)", db="shop")
    log.ddl("ALTER TABLE orders ADD x INT", db="shop")
    log.transaction("shop", "orders", [2])
    file = tmp_path / "binlog.000001"
    file.write_bytes(bytes(log.data))
    schema = tmp_path / "1.json"
    columns = (
        ColumnSchema(
            name="id", data_type="int", column_type="int", nullable=True, default=None, extra="", charset=None,
            collation=None,
        ),
    )  # fmt: skip
    Schemas(tables={"shop.orders": TableSchema(columns=columns, primary_key=())}).save(schema)
    code, out, err = run(capfd, str(file), "--schema", str(schema))
    assert (code, out) == (2, "") and "ALTER TABLE changes shop.orders at seq" in err
    seq = int(re.search(r"at seq (\d+)", err)[1])  # type: ignore[index]
    for part in (("--to", str(seq - 1)), ("--from", str(seq + 1))):
        code, out, _ = run(capfd, str(file), "--schema", str(schema), *part)
        assert code == 0 and len(rows(out)) == 1
