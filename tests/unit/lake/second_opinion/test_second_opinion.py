"""The second opinion over golden binlog files: equal values, faults planted in our decoder, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.base.errors import SourceRefusedError, UsageError
from cdc.binlog.sql.schemas import Schemas
from cdc.binlog.table_map import ColumnType
from cdc.cli import main as cli
from cdc.cli.verify import _sample
from cdc.decode import DecodeOptions, column_types
from cdc.decode.kernels import constants as k
from cdc.decode.reader import Decoder
from cdc.lake.second_opinion import values
from cdc.lake.second_opinion.library import INTERNAL_NAMES
from cdc.lake.second_opinion.report import MOST_DIFFERENCES, SecondOpinion, report_lines
from cdc.lake.second_opinion.rows import RowComparison
from cdc.lake.second_opinion.sample import of_files
from tests.support.unit_decode import GOLDEN, TABLE, golden, schemas_of

PAGE = Path(__file__).parents[4] / "docs" / "how-to" / "verify.md"
KINDS = ("mysql9", "mariadb10", "mariadb11")


def file(kind: str) -> Path:
    return GOLDEN / f"decode-{kind}.binlog"


def typed_file(kind: str) -> tuple[Path, Schemas]:
    return GOLDEN / f"decode-types-{kind}-v1.binlog", schemas_of(kind)


@pytest.mark.parametrize("name", INTERNAL_NAMES, ids=lambda name: name[1])
def test_the_names_without_a_promise(name: tuple[type, str]) -> None:
    assert hasattr(*name), f"{name[0].__module__}.{name[0].__name__} has no {name[1]} any more"


# --- values that are equal


@pytest.mark.parametrize("kind", KINDS)
def test_equal_values(kind: str) -> None:
    opinion = of_files([file(kind)], TABLE)
    assert (opinion.verdict, opinion.rows, opinion.values) == ("equal", 10, 360)
    assert opinion.left_out == {(TABLE, "skipped", str(values.NEGATIVE_TIME)): 4}


def test_a_server_without_metadata() -> None:
    """The names, signs, character sets and members come from the stored definition."""
    path, schemas = typed_file("mysql56")
    opinion = of_files([path], "shop.kinds", schemas=schemas)
    assert (opinion.verdict, opinion.rows, opinion.values) == ("equal", 9, 592)
    assert {column for _, column, _ in opinion.left_out} == {"b5", "c932", "ensj", "kr", "sj", "sw", "t1", "t6", "uj"}
    with pytest.raises(SourceRefusedError, match="names"):
        of_files([path], "shop.kinds")


@pytest.mark.parametrize(
    ("kind", "table", "reason"),
    [
        ("mysql9", "kinds", values.VECTOR),
        ("mariadb11", "kinds", values.COMPRESSED_COLUMNS),
        ("mariadb11", "old", values.HIRES_TIMES),
    ],
)
def test_tables_that_the_library_cannot_read(kind: str, table: str, reason: values.NotCompared) -> None:
    path, schemas = typed_file(kind)
    opinion = of_files([path], f"shop.{table}", schemas=schemas)
    assert (opinion.verdict, opinion.rows, opinion.values) == ("nothing compared", 0, 0)
    [(key, count)] = opinion.left_out.items()
    assert str(reason) in key[2] and count > 0
    assert "  no value was compared, so nothing is proved by it" in report_lines(opinion.document())


def test_the_page_lists_what_is_left_out() -> None:
    rows = re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    listed = [row for row in rows if row[2] in ("table", "row event", "column", "value")]
    assert listed == [(entry.what, entry.servers, entry.scope, entry.reason) for entry in values.LEFT_OUT]


# --- samples


def test_a_sample_has_the_rows_that_were_asked_for() -> None:
    assert of_files([file("mysql9")], TABLE, rows=3).rows in range(3, 6)
    assert of_files([file("mysql9")] * 2, TABLE).rows == 20


def test_a_sample_is_repeated_by_its_seed() -> None:
    once, repeated, other = (of_files([file("mysql9")], TABLE, rows=2, seed=seed) for seed in (3, 3, 4))
    assert (once.rows, once.values, once.left_out) == (repeated.rows, repeated.values, repeated.left_out)
    assert other.values > 0


def test_only_the_seqs_that_were_asked_for() -> None:
    last = int(golden("mysql9").entries["seq"][-1])
    assert of_files([file("mysql9")], TABLE, DecodeOptions(after_seq=last)).verdict == "nothing compared"


# --- faults in our decoder


def wrong_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    signed = (k.I8, pa.int8())
    monkeypatch.setitem(column_types._INTEGERS, ColumnType.TINY, (1, signed, signed))


def shifted_column(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoder._values

    def shifted(self: Decoder, *arguments: Any) -> list[pa.Array]:
        arrays = decoded(self, *arguments)
        names = [field.name for field in self.spec.fields]
        if "i24" in names:
            at, other = names.index("i24"), names.index("u24")
            arrays[at], arrays[other] = arrays[other], arrays[at]
        return arrays

    monkeypatch.setattr(Decoder, "_values", shifted)


def wrong_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    right = column_types._decimal

    def wrong(column: Any) -> column_types.ColumnDecoding:
        compared = right(column)
        assert compared.raw is not None
        return replace(compared, raw=pa.decimal128(compared.raw.precision, compared.raw.scale - 1))

    monkeypatch.setattr(column_types, "_decimal", wrong)


def lost_row(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoder.decode

    def fewer(self: Decoder, events: Any) -> tuple[pa.RecordBatch, int]:
        batch, count = decoded(self, events)
        return batch.slice(1), count

    monkeypatch.setattr(Decoder, "decode", fewer)


@pytest.mark.parametrize(
    ("plant", "column", "ours", "library"),
    [
        (wrong_sign, "u8", "-1", "255"),
        (shifted_column, "i24", "16777215", "-8388608"),
        (wrong_scale, "small", "-12345678901.2", "-1234567890.12"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], column: str, ours: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    opinion = of_files([file("mysql9")], TABLE)
    first = next(difference for difference in opinion.differences if difference.column == column)
    assert (first.ours, first.library, first.table, first.image) == (ours, library, TABLE, "new")
    assert (first.file, first.pos > 4, first.seq > 0) == (file("mysql9").name, True, True)
    assert opinion.verdict.endswith("DIFFER")
    assert str(first) in "\n".join(report_lines(opinion.document()))


def test_a_row_that_our_decoder_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_row(monkeypatch)
    [difference] = of_files([file("mysql9")], TABLE).differences
    assert (difference.column, difference.image) == (None, "event")


def test_values_of_hidden_columns_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_sign(monkeypatch)
    result = SecondOpinion(0, 100)
    RowComparison(result, golden("mysql9"), TABLE, None, lambda _: "binlog.000001", {"u8": "hash"}).compare(100)
    hidden = [difference for difference in result.differences if difference.column == "u8"]
    assert {(difference.ours, difference.library) for difference in hidden} == {("(hidden by the policy hash)",) * 2}


def test_differences_are_counted_beyond_those_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong_sign(monkeypatch)
    wrong_scale(monkeypatch)
    document = of_files([file("mysql9")] * 2, TABLE).document()
    assert len(document["differences"]) == MOST_DIFFERENCES and document["more"] > 0
    assert document["verdict"] == f"{MOST_DIFFERENCES + document['more']} DIFFER"


# --- commands


def test_the_sample_of_a_command() -> None:
    assert [_sample(text) for text in (None, "7", "7:0", "7:4294967295")] == [
        (10_000, None), (7, None), (7, 0), (7, 4294967295)
    ]  # fmt: skip
    for text in ("0", "-1", "7:", ":7", "seven", "7:x"):
        with pytest.raises(UsageError, match="neither a number of rows nor ROWS:SEED"):
            _sample(text)


def test_decode_with_a_second_opinion(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["decode", str(file("mysql9")), "--table", TABLE, "--second-opinion", "--column", "i8"]
    assert cli.main(command) == 0
    assert "second opinion: equal; 360 values of 10 rows" in capfd.readouterr().err
    wrong_sign(monkeypatch)
    assert cli.main(command) == 2
    assert f"{TABLE}.u8 (new): Towpath -1, mysql-replication 255" in capfd.readouterr().err
