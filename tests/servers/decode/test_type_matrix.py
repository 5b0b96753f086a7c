"""Every type and character set that a server lists, with edge values: what arrives is what SELECT shows.

The decoder reads the servers' own binlog files. ``tests/integration/test_types_in_delta.py`` goes the whole way through
capture, store and Spark into Delta; ``make types`` goes it for all servers, and makes ``docs/types.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.base.errors import UsageError
from cdc.decode.charsets.tables import charset_of
from cdc.testing.servers import Server
from tests.support.type_matrix import catalog, page, plan
from tests.support.type_matrix.column import Column, Table, as_delta
from tests.support.type_matrix.compare import Result, compare
from tests.support.type_matrix.run import Run, decoded
from tests.support.type_matrix.workload import Observed

PAGE = Path(__file__).parents[3] / "docs" / "types.md"
Runs = Callable[[str], Run]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> Runs:
    """The decoder's run on a server of a kind, made once."""
    made: dict[str, Run] = {}

    def run_of(kind: str) -> Run:
        if kind not in made:
            made[kind] = decoded(request.getfixturevalue(kind))
        return made[kind]

    return run_of


KINDS = [pytest.param(kind, marks=[pytest.mark.long] if kind == "mariadb10" else []) for kind in page.TITLES]


@pytest.mark.long_on("mysql56", "mariadb10")
@pytest.mark.parametrize("kind", KINDS)
def test_every_type_equals_select(kind: str, runs: Runs) -> None:
    run = runs(kind)
    assert not run.result.faults, "\n".join(run.result.faults[:40])
    assert run.result.total > 30_000
    assert {line.row for line, _ in run.result.counts} == {
        column.row for table in run.tables for column in table.columns
    }


@pytest.mark.long
def test_the_page_is_what_the_runs_find(runs: Runs) -> None:
    text = page.render([runs(kind) for kind in page.TITLES])
    written = PAGE.read_text(encoding="utf-8")
    if page.versions(written) == page.versions(text):
        assert written == text, "`make types` makes it anew"
    else:  # another version may have further types and character sets, and so other numbers
        assert page.types(written) <= page.types(text), "`make types` makes it anew"


@pytest.mark.parametrize("kind", KINDS)
def test_every_collation_is_known(kind: str, runs: Runs) -> None:
    """A table map gives a text's character set by the number of a collation."""
    collations = runs(kind).catalog.collations
    assert len(collations) > 200
    same = {"utf8": "utf8mb3"}
    assert {number: charset_of(number) for number in collations} == {
        n: same.get(name, name) for n, name in collations.items()
    }


def test_a_type_without_edge_values_fails(mysql9: Server, runs: Runs) -> None:
    listed = runs("mysql9").catalog
    with mysql9.connect() as connection, pytest.raises(UsageError, match="without edge values in the matrix: hologram"):
        plan.tables(connection, replace(listed, types={**listed.types, "hologram": ("HOLOGRAM",)}))


def test_what_the_help_pages_list_must_be_a_type(
    mysql9: Server, database: Callable[[Server], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "NO_TYPES", frozenset())
    with mysql9.connect() as connection, pytest.raises(UsageError, match="no column can have: AUTO_INCREMENT"):
        catalog.read_catalog(connection, database(mysql9))


# ---------------------------------------------------------------- the comparison itself

_COLUMN = Column("DOUBLE", "DOUBLE", ("0", "-0e0"), pa.float64(), "double", name="v")


def _changes(values: list[float], kind: pa.DataType | None = None) -> pa.Table:
    """Returns the changes of two rows: inserted as values 0 and 1, updated from them to 2 and 3, deleted."""
    old = [None, None, *values[:2], *values[2:]]
    keys = [0, 1] * 3
    before = [
        None if op == "insert" else {"id": key, "v": value} for op, key, value in zip(_OPS, keys, old, strict=True)
    ]
    own = pa.array([*values[:2], *values[2:], *values[2:]], kind or pa.float64())
    return pa.table({"_op": _OPS, "id": keys, "v": own, "_before": before})


_OPS = ["insert"] * 2 + ["update"] * 2 + ["delete"] * 2
_SEEN = Observed(
    Table("t", (_COLUMN,)), "", {"id": [0, 1], "v": [0.0, -0.0]}, {"id": [0, 1], "v": [-0.0, 1.5]}
)  # fmt: skip


def test_the_comparison_counts_what_is_equal() -> None:
    result = Result()
    compare(_SEEN, _changes([0.0, -0.0, -0.0, 1.5]), result)
    assert result.faults == []
    assert {op: count for (_, op), count in result.counts.items()} == {"insert": 2, "update": 4, "delete": 4}


@pytest.mark.parametrize("at", range(4))
def test_the_comparison_finds_each_value_that_differs(at: int) -> None:
    values = [0.0, -0.0, -0.0, 1.5]
    values[at] = 0.0 if at in (1, 2) else -7.0
    result = Result()
    compare(_SEEN, _changes(values), result)
    assert len(result.faults) == (2 if at < 2 else 3)
    assert all("SELECT shows" in fault for fault in result.faults)


def test_the_comparison_finds_another_type_and_a_missing_row() -> None:
    for arrived in (_changes([0.0, 1.0, 2.0, 3.0], pa.float32()), _changes([0.0, -0.0, -0.0, 1.5]).slice(1)):
        result = Result()
        compare(_SEEN, arrived, result)
        assert len(result.faults) == 1 and result.total == 0


@pytest.mark.parametrize(
    ("column", "select", "delta"),
    [
        (Column("", "", (), pa.date32(), "date"), "2023-02-31", None),
        (Column("", "", (), pa.timestamp("us"), "datetime"), "0000-00-00 00:00:00", None),
        (Column("", "", (), pa.decimal128(20, 0), "integer"), 2**64 - 1, Decimal(2**64 - 1)),
        (Column("", "", (), pa.float32(), "float"), 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
        (Column("", "", (), pa.int16(), "short year"), 99, 1999),
        (Column("", "", (), pa.int16(), "short year"), 1, 2001),
        (Column("", "", (), pa.list_(pa.float32()), "floats"), "0000803F000000C0", [1.0, -2.0]),
    ],
)
def test_select_answers_as_delta_holds_them(column: Column, select: Any, delta: Any) -> None:
    assert as_delta(select, column) == delta
