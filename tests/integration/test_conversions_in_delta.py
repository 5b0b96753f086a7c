"""The values that old rows get in Delta when a type changes and one of the two is a text there, against SELECT on real
servers: all pairs of types whose conversion Towpath follows, in one Spark session."""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t

from cdc.batches.service import BatchService
from cdc.binlog.sql.changes import Unknown
from cdc.binlog.sql.conversions import Converted
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.config import ApplyConfig, SparkConfig
from cdc.lake import pipeline
from cdc.lake.apply.schema.values import Conversion, conversion, doubtful
from cdc.lake.delta.sql import text_literal
from cdc.lake.delta.tables import ddl_type
from cdc.lake.rows.columns import TablePolicies, columns_of_schema
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import LOCAL_CONF, Loop
from tests.support.capturing import capturing
from tests.support.ddl_conversions import LENIENT, STRICT, Claim, Conversions, Outcome

Database = Callable[[Server], str]
TOGETHER = 40
FEW_TOGETHER = 8
"""So many long texts have room in a row of MySQL 5.6."""
PER_QUERY = 100
STRICT_SAMPLE = 25
"""The number of claims that are tried although they hold in strict mode only, beside those of numbers."""
FOLLOWED = {
    ("DECIMAL(30,5)", "DECIMAL(45,10)"), ("DECIMAL(45,10)", "DECIMAL(65,30)"), ("DECIMAL(45,10)", "DECIMAL(38,10)"),
    ("DECIMAL(40,0)", "BIGINT"), ("BIGINT UNSIGNED", "DECIMAL(40,0)"), ("INT", "VARCHAR(20)"), ("TIME", "TIME(3)"),
}  # fmt: skip
"""Pairs of types, old and new, of which each kind of server has converted values."""


@pytest.fixture(
    scope="module",
    params=["mysql9", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mariadb11", "mariadb10", "mysql56"))],
)
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def conversions(server: Server, database: Database) -> Iterator[Conversions]:
    name = database(server)
    server.execute(f"ALTER DATABASE `{name}` CHARACTER SET utf8mb4")
    opened = Conversions(server, name)
    yield opened
    opened.close()


def delta_type(conversions: Conversions, kind: str) -> t.DataType:
    """The type that a column has in Delta."""
    column = conversions.column(kind)
    policies = TablePolicies.of("d.t", ApplyConfig.model_validate({"target": "lake"}))
    schema = TableSchema(columns=(column,), primary_key=())
    (field,) = columns_of_schema(schema, policies).fields
    return field.dataType


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.long)])
def test_old_rows_are_as_select_shows_them(conversions: Conversions, seed: int, step: int) -> None:
    """Spark converts one value of each ``step`` that the server has converted, and those of all pairs in FOLLOWED."""
    kinds = {
        name: delta_type(conversions, name) for claim in conversions.claims(STRICT) for name in (claim.old, claim.new)
    }

    def concerns_text(claim: Claim) -> bool:
        return any(isinstance(kinds[name], t.StringType) for name in (claim.old, claim.new))

    def converts(claim: Claim) -> Conversion | None:
        old, new = conversions.column(claim.old), conversions.column(claim.new)
        return conversion(old, new, kinds[claim.old], kinds[claim.new], claim.effect)

    lenient = [claim for claim in conversions.claims(LENIENT) if concerns_text(claim)]
    anyway = {(claim.old, claim.new) for claim in lenient}
    strict = [c for c in conversions.claims(STRICT) if concerns_text(c) and (c.old, c.new) not in anyway]
    numbers = [claim for claim in strict if claim.old.startswith("DECIMAL")]
    others = [claim for claim in strict if claim not in numbers]
    outcomes: list[Outcome] = []
    for at in range(0, len(lenient), TOGETHER):
        outcomes += conversions.outcomes_together(lenient[at : at + TOGETHER])
    for claim in numbers + random.Random(seed).sample(others, min(len(others), STRICT_SAMPLE)):
        outcomes += conversions.outcomes_strictly(claim)

    wrong, compared = [], []
    for outcome in outcomes:
        rule = converts(outcome.claim)
        if rule is None or isinstance(outcome.old, bytes) or isinstance(outcome.new, bytes):
            continue  # the table is parked
        have = kinds[outcome.claim.old]
        if rule.expression is None and have == rule.type and isinstance(have, t.StringType):
            if outcome.old != outcome.new:
                wrong.append(outcome)
        else:
            compared.append((outcome, comparison(outcome, rule, have)))
    assert len(compared) > 100
    compared = [
        (case, sql)
        for number, (case, sql) in enumerate(compared)
        if number % step == seed % step or (case.claim.old, case.claim.new) in FOLLOWED
    ]
    spark = session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF)).spark
    for at in range(0, len(compared), PER_QUERY):
        part = compared[at : at + PER_QUERY]
        wrong += [
            case for (case, _), equal in zip(part, evaluated(spark, [sql for _, sql in part]), strict=True) if not equal
        ]
    assert not wrong, "\n".join(f"{o.claim.old} to {o.claim.new}: {o.old!r} became {o.new!r}" for o in wrong)
    followed = {(case.claim.old, case.claim.new) for case, _ in compared}
    assert followed >= FOLLOWED


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.long)])
def test_values_that_change_are_computed_or_doubted(conversions: Conversions, seed: int, step: int) -> None:
    """Each value that the server has converted is what Spark computes, or one of those that make the effect
    uncertain."""

    def uncertain(mode: str) -> list[Claim]:
        claims = conversions.all_claims(mode)
        return [
            claim for claim in claims if isinstance(claim.effect, Converted) or getattr(claim.effect, "unless", None)
        ]

    lenient = uncertain(LENIENT)
    strict = [claim for claim in uncertain(STRICT) if isinstance(claim.effect, Converted)]
    lenient, strict = lenient[seed % step :: step], random.Random(seed).sample(strict, STRICT_SAMPLE * 4 // step)
    outcomes: list[Outcome] = []
    for at in range(0, len(lenient), FEW_TOGETHER):
        outcomes += conversions.outcomes_together(lenient[at : at + FEW_TOGETHER])
    for claim in strict:
        outcomes += conversions.outcomes_strictly(claim)
    kinds = {
        name: delta_type(conversions, name) for outcome in outcomes for name in (outcome.claim.old, outcome.claim.new)
    }
    asked: list[tuple[Outcome, str, str]] = []
    for outcome in outcomes:
        effect, have = outcome.claim.effect, kinds[outcome.claim.old]
        old, new = conversions.column(outcome.claim.old), conversions.column(outcome.claim.new)
        rule = conversion(old, new, have, kinds[outcome.claim.new], effect)
        assert not isinstance(effect, Unknown)
        value = f"CAST({in_delta(outcome.old, old)} AS {ddl_type(have)})"
        doubts = [doubtful(doubt, value, have, is_set=old.data_type == "set") for doubt in effect.unless]
        if rule is None or None in doubts:
            continue  # the table is parked
        doubt = f"coalesce({' OR '.join([*map(str, doubts), 'false'])}, false)"
        kind = ddl_type(rule.type)
        become = value if rule.expression is None else rule.expression(value)
        equal = f"CAST({become} AS {kind}) <=> CAST({in_delta(outcome.new, new)} AS {kind})"
        asked.append((outcome, doubt, f"CASE WHEN NOT {doubt} THEN {equal} END"))
    spark = session.acquire(SparkConfig(master="local[2]", conf=LOCAL_CONF)).spark
    wrong, computed, doubted = [], set(), 0
    for at in range(0, len(asked), PER_QUERY):
        part = asked[at : at + PER_QUERY]
        held = evaluated(spark, [sql for _, *checks in part for sql in checks])
        for (outcome, _, _), is_doubted, is_equal in zip(part, held[::2], held[1::2], strict=True):
            doubted += is_doubted
            if not is_doubted and outcome.old is not None:
                computed.add(getattr(outcome.claim.effect, "to", "same"))
                if not is_equal:
                    wrong.append(
                        f"{outcome.claim.old} to {outcome.claim.new}: {outcome.old!r} became {outcome.new!r}: "
                        f"{outcome.claim.effect}"
                    )
    assert not wrong, "\n".join(wrong)
    kinds_of_effects = set(typing.get_args(typing.get_type_hints(Converted)["to"]))
    kinds_of_effects.remove("filled")  # test_random_conversions.py adds NOT NULL
    assert doubted > 20 and (step > 1 or computed >= kinds_of_effects)


def in_delta(value: str | bytes | None, column: ColumnSchema) -> str:
    """A value as the server sends it, as SQL of Spark."""
    if value is None:
        return "NULL"
    if column.data_type == "bit":
        assert isinstance(value, bytes)
        return str(int.from_bytes(value, "big"))
    if column.charset is None and column.data_type.endswith(("binary", "blob")):
        return f"X'{(value.encode() if isinstance(value, str) else value).hex()}'"
    if column.data_type in ("float", "double"):
        return f"CAST({text_literal(_text(value))} AS DOUBLE)"
    return text_literal(_text(value))


def comparison(outcome: Outcome, rule: Conversion, have: t.DataType) -> str:
    """SQL that says whether Delta's conversion of the old value is the new one."""
    old, new = ("NULL" if value is None else text_literal(_text(value)) for value in (outcome.old, outcome.new))
    value = f"CAST({old} AS {ddl_type(have)})"
    value = value if rule.expression is None else rule.expression(value)
    kind = ddl_type(rule.type)
    return f"CAST({value} AS {kind}) <=> CAST({new} AS {kind})"


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode()


def evaluated(spark: SparkSession, expressions: list[str]) -> list[bool]:
    (row,) = spark.sql(f"SELECT {', '.join(f'{sql} AS c{n}' for n, sql in enumerate(expressions))}").collect()
    return list(row)


CREATE = (
    "CREATE TABLE {} (id INT PRIMARY KEY, w DECIMAL(50,25), n DECIMAL(30,5), i INT, u BIGINT UNSIGNED, s TIME, "
    "e ENUM('a','b'), x SMALLINT, v CHAR(5)) DEFAULT CHARSET = utf8mb4"
)
ROWS = (
    "INSERT INTO {} VALUES (1, -465.4943454794681871753479057, 1.5, -7, 18446744073709551615, '-00:00:01', 'a', -5, 'a'), "
    "(2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (3, 0, -0.00001, 0, 0, '838:59:59', 'b', 0, ''), "
    "(4, 1, 1, 1, 1, '01:02:03', 'a', 1, 'b')"
)
WIDER = (
    "ALTER TABLE {} MODIFY w DECIMAL(52,27), MODIFY n DECIMAL(45,10), MODIFY i DECIMAL(40,2), MODIFY u DECIMAL(40,0), "
    "MODIFY s TIME(3), MODIFY e VARCHAR(5), MODIFY x VARCHAR(12), MODIFY v VARCHAR(9), "
    "ADD d DECIMAL(45,10) NOT NULL DEFAULT 1.5, ADD z DECIMAL(45,10) NOT NULL, ADD y TIME(3) NOT NULL DEFAULT '12:00:00'"
)
LATER = (
    "INSERT INTO {} VALUES (9, 0.5, 0.5, 0.5, 5, '00:00:00.5', 'new', 'x', 'y', 2, 3, '01:00:00')",
    "UPDATE {} SET w = 3 WHERE id = 4",
)
SHOWN = ("id", "w", "n", "i", "u", "s", "e", "x", "v", "d", "z", "y")
MODES = {"mirror": "upsert", "soft": "soft_delete", "versions": "scd2", "log": "append"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "engine"),
    [
        pytest.param("mysql9", "spark", marks=pytest.mark.long),
        pytest.param("mysql9", "deltalake", marks=pytest.mark.long),
        pytest.param("mariadb11", "spark", marks=pytest.mark.long),
    ],
)
def test_every_mode_shows_the_rows_from_before_as_select(
    kind: str, engine: str, request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    source: Server = request.getfixturevalue(kind)
    overrides = ", ".join(f"DB.{table}: {{mode: {mode}}}" for table, mode in MODES.items())
    small = "small_batches: {engine: deltalake, max_rows: 100000}" if engine == "deltalake" else ""
    loop = Loop(tmp_path, source, database(source), overrides=overrides, apply=small)
    loop.sql(*(sql.format(table) for table in MODES for sql in (CREATE, ROWS, "DELETE FROM {} WHERE id = 2")))
    loop.capture()
    loop.apply_all()
    before = texts(loop, "log", SHOWN[:9], "true")
    loop.sql(*(WIDER.format(table) for table in MODES))
    loop.capture()
    loop.apply_all()
    # Numbers become texts of the same number; nothing else of the changelog changes.
    assert [[number(v) for v in row] for row in texts(loop, "log", SHOWN[:9], "true")] == [
        [number(v) for v in row] for row in before
    ]
    loop.sql(*(sql.format(table) for table in MODES for sql in LATER))
    loop.capture()
    loop.apply_all()
    for table, current in (("mirror", "true"), ("soft", "NOT _deleted"), ("versions", "_current")):
        assert texts(loop, table, SHOWN, current) == selected(loop, table, SHOWN), table
    assert texts(loop, "soft", ("id", "d"), "_deleted") == [["2", "1.5000000000"]]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_decimal_of_fewer_digits_becomes_a_number_again(mysql9: Server, database: Database, tmp_path: Path) -> None:
    loop = Loop(
        tmp_path, mysql9, database(mysql9), overrides="DB.soft: {mode: soft_delete}", apply="on_error: park"
    )  # fmt: skip
    for table in ("mirror", "soft"):
        loop.sql(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, w DECIMAL(45,10), i DECIMAL(40,0))",
            f"INSERT INTO {table} VALUES (1, -1.5, 5), (2, NULL, NULL), (3, 9999999999999999999999999999.9999999999, 0), "
            f"(4, 12345678901234567890123456789012345, 1234567890123456789012345678901234567890)",
            f"DELETE FROM {table} WHERE id = 4",
        )
    loop.capture()
    loop.apply_all()
    loop.sql(*(f"ALTER TABLE {table} MODIFY w DECIMAL(38,10), MODIFY i BIGINT" for table in ("mirror", "soft")))
    loop.sql(*(f"INSERT INTO {table} VALUES (5, 2.25, 7)" for table in ("mirror", "soft")))
    loop.capture()
    loop.apply_all()
    assert loop.delta("mirror") == loop.select("mirror")
    # The deleted row holds a number that the new type does not: only a snapshot tells the table's rows.
    ((table, record),) = BatchService(loop.config).subscription().parked.items()
    assert table == f"{loop.db}.soft" and f"cdc snapshot shop {table}" in record.reason
    take_snapshot(loop, "soft")
    assert texts(loop, "soft", ("id", "w", "i"), "NOT _deleted") == selected(loop, "soft", ("id", "w", "i"))


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_snapshot_that_overtakes_the_statement(mysql9: Server, database: Database, tmp_path: Path) -> None:
    overrides = ", ".join(f"DB.{table}: {{mode: {mode}}}" for table, mode in MODES.items())
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.sql(*(sql.format(table) for table in MODES for sql in (CREATE, ROWS, "DELETE FROM {} WHERE id = 2")))
    loop.capture()
    loop.apply_all()
    loop.sql(*(sql.format(table) for table in MODES for sql in (WIDER, *LATER)))
    loop.capture()
    take_snapshot(loop, "mirror", "soft", "versions")
    for table, current in (("mirror", "true"), ("soft", "NOT _deleted"), ("versions", "_current")):
        assert texts(loop, table, SHOWN, current) == selected(loop, table, SHOWN), table


def take_snapshot(loop: Loop, *tables: str) -> None:
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{loop.db}.{table}" for table in tables])
    loop.capture()
    loop.apply_all()


def texts(loop: Loop, table: str, names: tuple[str, ...], where: str) -> list[list[str | None]]:
    """The rows of a Delta table, as Spark prints them."""
    frame = session.acquire(loop.config.spark).spark.read.format("delta").load(str(loop.path(table))).where(where)
    rows = frame.selectExpr(*(f"CAST({name} AS STRING)" for name in names)).collect()
    return sorted((list(row) for row in rows), key=str)


def selected(loop: Loop, table: str, names: tuple[str, ...]) -> list[list[str | None]]:
    """The rows of the source, as the server prints them."""
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(f'CAST({name} AS CHAR)' for name in names)} FROM `{loop.db}`.`{table}`")
        return sorted((list(row) for row in cursor.fetchall()), key=str)


def number(text: str | None) -> Decimal | str | None:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        return text
