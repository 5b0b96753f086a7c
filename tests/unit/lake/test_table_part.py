"""Parts of tables: keys and conditions as users write them, the server's wider conditions, and what is refused."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from cdc.base.errors import UsageError
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.config.columns import ColumnPolicy
from cdc.lake.jobs.table_part import PartRequest, TablePart
from cdc.lake.rows.columns import TablePolicies, columns_of_schema


def column(name: str, full: str, charset: str | None = None, collation: str | None = None) -> ColumnSchema:
    kind = full.partition("(")[0].split()[0]
    return ColumnSchema(
        name=name,
        data_type=kind,
        column_type=full,
        nullable=False,
        default=None,
        extra="",
        charset=charset,
        collation=collation,
    )


SCHEMA = TableSchema(
    columns=(
        column("tenant", "bigint unsigned"),
        column("id", "int"),
        column("name", "varchar(20)", "utf8mb4", "utf8mb4_general_ci"),
        column("old", "char(5)", "latin1", "latin1_swedish_ci"),
        column("odd", "varchar(5)", "sjis", "sjis_japanese_ci"),
        column("day", "date"),
        column("at", "timestamp(3)"),
        column("price", "decimal(6,2)"),
        column("mark", "binary(2)"),
        column("since", "year"),
        column("secret", "varchar(20)", "utf8mb4", "utf8mb4_bin"),
    ),
    primary_key=("tenant", "id"),
)
POLICIES = TablePolicies(
    "shop.t", columns={"secret": ColumnPolicy(kind="null"), "price": ColumnPolicy(kind="rename", name="amount")}
)


def part(keys: str | None = None, where: str | None = None) -> TablePart:
    request = PartRequest.of(keys, where)
    assert request is not None
    return request.resolve("shop.t", SCHEMA, columns_of_schema(SCHEMA, POLICIES), SCHEMA.primary_key)


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("tenant = 7", "`tenant` = 7"),
        ("TENANT in (7, 8)", "`tenant` = 7 OR `tenant` = 8"),
        ("price <= 1.5", "`price` <= 1.50"),
        ("`name` = 'o''b'", "`name` = _utf8mb4 x'6f2762' COLLATE utf8mb4_general_ci"),
        ("old = '€'", "`old` = _latin1 x'80' COLLATE latin1_swedish_ci"),
        ("day >= '2026-03-01'", "`day` >= '2026-03-01'"),
        ("at < '2026-03-01T02:00:00+02:00'", "`at` < '2026-03-01 00:00:00.000000'"),
        ("mark = 0xFF00", "`mark` = x'ff00'"),
    ],
)
def test_the_server_chooses_rows(text: str, condition: str) -> None:
    assert part(where=text).record.sql(SCHEMA) == f"(({condition}))"


@pytest.mark.parametrize("text", ["name > 'a'", "odd = 'a'", "since >= 70", "old = 'ж'"])
def test_rows_that_the_server_cannot_choose_are_all_read(text: str) -> None:
    assert part(where=text).record.sql(SCHEMA) is None
    combined = part(where=f"{text} AND tenant BETWEEN 1 AND 2").record
    assert combined.sql(SCHEMA) == "((`tenant` >= 1) AND (`tenant` <= 2))"
    assert combined.narrows("tenant", SCHEMA) and not combined.narrows("id", SCHEMA)


def test_keys() -> None:
    chosen = part("tenant=7,id=3..tenant=7,id=9")
    assert chosen.record.sql(SCHEMA) == "((`tenant` = 7) AND (`id` >= 3) AND (`id` <= 9))"
    assert chosen.is_of_keys
    assert part('{"tenant": 7, "id": 3}').record.sql(SCHEMA) == "((`tenant` = 7) AND (`id` = 3))"
    assert part("tenant=7,id=3..tenant=7,id=9", "day = '2026-03-01'").is_of_keys is False


def test_more_keys_are_read_beside_the_part() -> None:
    chosen = part(where="name = 'a'").with_keys([(Decimal(7), 3)])
    assert chosen.more_keys() == [(Decimal(7), 3)]
    assert chosen.record.sql(SCHEMA) == (
        "((`name` = _utf8mb4 x'61' COLLATE utf8mb4_general_ci)) OR ((`tenant` = 7) AND (`id` = 3))"
    )
    assert not chosen.record.narrows("tenant", SCHEMA)
    assert part(where="name > 'a'").with_keys([(Decimal(7), 3)]).record.sql(SCHEMA) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"where": " "}, "--where is empty"),
        ({"where": "tenant = 7 OR id = 2"}, "has 'OR' instead of AND"),
        ({"where": "tenant = id"}, "has 'id' instead of a literal"),
        ({"where": "tenant = NULL"}, "has 'NULL' instead of a literal"),
        ({"where": "tenant != 7"}, "has '!' instead of a comparison"),
        ({"where": "tenant IN (7"}, "has 'its end' instead of ."),
        ({"where": "tenant ="}, "has 'its end' instead of a literal"),
        ({"where": "name = 'a"}, "cannot be read from"),
        ({"where": "name = 7"}, "compares a column of the type string with the number 7"),
        ({"where": "day = 20260301"}, "compares a column of the type date32.day. with the number 20260301"),
        ({"where": "id = 3000000000"}, "'3000000000' is no value of the column's type, int32"),
        ({"where": "price = 1.555"}, "'1.555' is no value of the column's type"),
        ({"where": "day = '2026-02-30'"}, "'2026-02-30' is no value of the column's type"),
        ({"where": "nothing = 1"}, "it has no column nothing"),
        ({"where": "secret = 'x'"}, "the lake does not have the values of the column secret"),
        ({"keys": "7"}, "'7' is not a key"),
        ({"keys": "tenant=7,id=3..tenant=8,id=9"}, "the ends of a range differ in more than id"),
        ({"keys": "tenant=7,id=9..tenant=7,id=3"}, "the first key of the range comes after the last one"),
        ({"keys": "1..2..3"}, "'1..2..3' is not a range of keys"),
        ({"keys": "1.."}, "'1..' is not a range of keys"),
    ],
)
def test_refusals(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        part(**words)


def test_a_hashed_key_tells_no_part() -> None:
    policies = TablePolicies("shop.t", columns={"id": ColumnPolicy(kind="hash")}, key=b"0" * 32)
    columns = columns_of_schema(SCHEMA, policies)
    for text in ("id = 3", "day = '2026-03-01'"):
        with pytest.raises(UsageError, match="the lake does not have the values of the column id"):
            PartRequest(None, text).resolve("shop.t", SCHEMA, columns, SCHEMA.primary_key)
    assert PartRequest(None, "tenant = 7").resolve("shop.t", SCHEMA, columns, SCHEMA.primary_key).is_of_keys
