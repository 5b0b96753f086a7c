"""Effects of statements on Delta tables, decided without Spark: columns, values of old rows, refusals."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from pyspark.sql import types as t

from cdc.base.errors import CdcError, UnsupportedDdlError
from cdc.binlog.sql.changes import CreateTable
from cdc.binlog.sql.schemas import TableSchema
from cdc.binlog.sql.server import ServerVersion
from cdc.binlog.sql.statements import classify
from cdc.config import ApplyConfig
from cdc.lake.apply.schema.columns import Goal, Goals, columns_of, holds, next_step, passing_name, widens
from cdc.lake.apply.schema.lineage import differences, follow
from cdc.lake.apply.schema.plan import TableEvolution, plan
from cdc.lake.apply.schema.statements import DdlStatement, effect_on
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import Target
from cdc.lake.rows.columns import TablePolicies, columns_of_schema
from tests.support.ddl_corpus import corpus

Field = tuple[str, str, t.DataType]
STRICT = 1 << 21
MYSQL = ServerVersion.parse("9.1.0")
TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) CHARACTER SET utf8mb4, c DECIMAL(10,2), d DATE, h TIME)"
)


def target(mode: str = "upsert", **settings: object) -> Target:
    apply = ApplyConfig.model_validate({"target": "lake", "mode": mode, **settings})
    return Target("shop.t", "lake/shop/t", apply, "shop", TablePolicies.of("shop.t", apply))


def schema_of(sql: str) -> TableSchema:
    [create] = classify(sql, "shop", STRICT, MYSQL).changes
    assert isinstance(create, CreateTable)
    assert create.schema is not None
    return create.schema


def state_of(fields: list[Field], mode: str = "upsert") -> DeltaState:
    """A Delta table with these (name, physical name, type)."""
    whole = [
        {
            "name": name, "type": kind.jsonValue(), "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": physical},
        }
        for name, physical, kind in fields
    ]  # fmt: skip
    return DeltaState("lake", 3, {"towpath.mode": mode}, json.dumps({"type": "struct", "fields": whole}), 10)


def planned(alter: str, on: Target, create: str = TABLE) -> TableEvolution:
    before = schema_of(create)
    fields = columns_of_schema(before, on.policies).fields
    columns = columns_of(state_of([(f.name, f.name, f.dataType) for f in fields]))
    changes = classify(f"ALTER TABLE t {alter}", "shop", STRICT, MYSQL).changes
    after, followed = follow(before, changes, STRICT, None)
    return plan(on, columns, followed, before, after)


def shown(evolution: TableEvolution) -> list[str]:
    """The columns as ``name type <- former name = value``."""
    out = []
    for c in evolution.columns:
        was = "" if c.was is None or c.was.name == c.name else f" <- {c.was.name}"
        value = "" if c.value is None else f" = {c.value('x')}"
        out.append(f"{c.name} {c.type.simpleString()}{was}{value}")
    return out


@pytest.mark.parametrize(
    ("alter", "expected"),
    [
        ("DROP a, RENAME COLUMN b TO a", ["id int", "a string <- b", "c decimal(10,2)", "d date", "h string"]),
        ("MODIFY a BIGINT FIRST", ["a bigint", "id int", "b string", "c decimal(10,2)", "d date", "h string"]),
        ("MODIFY a SMALLINT", ["id int", "a int", "b string", "c decimal(10,2)", "d date", "h string"]),
        ("MODIFY c DECIMAL(9,4)", ["id int", "a int", "b string", "c decimal(12,4)", "d date", "h string"]),
        (
            "MODIFY h TIME(2)",
            ["id int", "a int", "b string", "c decimal(10,2)", "d date", "h string = concat(x, '.00')"],
        ),
        (
            "ADD z INT NOT NULL DEFAULT 7 AFTER a, ADD y INT",
            [
                "id int",
                "a int",
                "z int = CAST('7' AS int)",
                "b string",
                "c decimal(10,2)",
                "d date",
                "h string",
                "y int",
            ],
        ),
        ("ADD z DATE NOT NULL", ["id int", "a int", "b string", "c decimal(10,2)", "d date", "h string", "z date"]),
    ],
)
def test_a_mirror_follows(alter: str, expected: list[str]) -> None:
    evolution = planned(alter, target())
    assert not (evolution.unknown or evolution.unknown_new or evolution.refused or evolution.rewrites)
    assert shown(evolution) == expected


def test_types_that_delta_cannot_widen_are_rewritten() -> None:
    for alter in ("MODIFY a VARCHAR(20)", "MODIFY d DATETIME"):
        evolution = planned(alter, target())
        assert evolution.rewrites
        assert [c.value("x")[:6] for c in evolution.columns if c.value is not None] == ["CAST(x"]


WIDE = (
    "CREATE TABLE t (id INT PRIMARY KEY, w DECIMAL(45,10), n DECIMAL(30,5), u BIGINT UNSIGNED, h TIME) CHARSET utf8mb4"
)


@pytest.mark.parametrize(
    ("alter", "expected", "rewrites"),
    [
        ("MODIFY w DECIMAL(50,12)", "w string = concat(x, '00')", False),
        ("MODIFY w DECIMAL(50,10)", "w string", False),
        ("MODIFY w DECIMAL(38,10)", "w decimal(38,10) = CAST(x AS decimal(38,10))", True),
        ("MODIFY n DECIMAL(45,10)", "n string = concat(CAST(x AS STRING), '00000')", True),
        ("MODIFY n DECIMAL(45,5)", "n string = CAST(x AS STRING)", True),
        ("MODIFY u DECIMAL(45,2)", "u string = concat(CAST(x AS STRING), '.00')", True),
    ],
)
def test_decimals_of_many_digits_are_texts(alter: str, expected: str, rewrites: bool) -> None:
    evolution = planned(alter, target(), WIDE)
    assert expected in shown(evolution) and not evolution.unknown
    assert evolution.rewrites == rewrites


def test_removed_rows_may_hold_what_a_narrower_type_does_not() -> None:
    narrow = "MODIFY w DECIMAL(38,10)"
    for settings in ({"mode": "soft_delete"}, {"mode": "scd2"}, {"on_truncate": "ignore"}):
        assert planned(narrow, target(**settings), WIDE).unknown
    evolution = planned(narrow, target("append"), WIDE)
    assert "w string" in shown(evolution) and not evolution.unknown


def test_times_that_are_numbers_get_no_digits() -> None:
    assert "h bigint" in shown(planned("MODIFY h TIME(3)", target(types={"time": "microseconds"}), WIDE))


GENERATED = "CREATE TABLE t (id INT PRIMARY KEY, a DECIMAL(5,1), n INT, v VARCHAR(5), g VARCHAR(20) AS (a) STORED) CHARSET utf8mb4"


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        ("MODIFY g VARCHAR(20) AS (a + 1) STORED", "another expression"),
        ("MODIFY a DECIMAL(8,3)", "another type"),
        ("MODIFY v VARCHAR(3)", "another type"),  # it may be cut
        ("MODIFY n INT AUTO_INCREMENT", "another type"),  # 0 becomes a number
        ("MODIFY n BIGINT, MODIFY v VARCHAR(9), ADD z INT", ""),
        ("RENAME COLUMN n TO m", ""),
    ],
)
def test_generated_columns_are_computed_anew(alter: str, reason: str) -> None:
    evolution = planned(alter, target(), GENERATED)
    assert reason in "; ".join(evolution.unknown) and bool(evolution.unknown) == bool(reason)


def test_a_column_computed_from_another_expression_is_read_with_it() -> None:
    create = GENERATED.replace(" STORED)", " STORED, s VARCHAR(20) AS (g) STORED)")
    assert planned("MODIFY g VARCHAR(20) AS (a + 1) STORED", target(), create).read == ["g", "s"]


@pytest.mark.parametrize(
    "alter",
    [
        "ADD z INT NOT NULL AUTO_INCREMENT UNIQUE",
        "ADD z INT DEFAULT (RAND())",
        "MODIFY b INT",
        "MODIFY h TIME NOT NULL",
    ],
)
def test_what_only_the_server_knows(alter: str) -> None:
    evolution = planned(alter, target())
    if alter.endswith("TIME NOT NULL"):
        assert not evolution.unknown  # strict mode refuses a NULL there
    else:
        assert evolution.unknown or evolution.unknown_new


def test_a_changelog_keeps_its_values() -> None:
    evolution = planned("ADD z INT NOT NULL DEFAULT 7, MODIFY b INT, DROP c", target("append"))
    assert not (evolution.unknown or evolution.unknown_new)
    assert shown(evolution) == ["id int", "a int", "b string", "d date", "h string", "z int"]


def test_additive_keeps_and_copies() -> None:
    evolution = planned("DROP c, RENAME COLUMN a TO e, ADD z INT FIRST", target(schema_changes="additive"))
    assert shown(evolution) == [
        "z int", "id int", "e int = `a`", "a int", "b string", "c decimal(10,2)", "d date", "h string",
    ]  # fmt: skip
    assert planned("MODIFY a VARCHAR(9)", target(schema_changes="additive")).refused


def test_ignore_keeps_the_columns() -> None:
    evolution = planned(
        "DROP c, RENAME COLUMN a TO e, ADD z INT NOT NULL AUTO_INCREMENT UNIQUE", target(schema_changes="ignore")
    )
    assert shown(evolution) == ["id int", "a int", "b string", "c decimal(10,2)", "d date", "h string"]
    assert not (evolution.refused or evolution.unknown or evolution.unknown_new)
    assert planned("MODIFY a BIGINT", target(schema_changes="ignore")).refused


@pytest.mark.parametrize(
    "alter", ["DROP c", "ADD z INT", "RENAME COLUMN a TO e", "MODIFY a BIGINT", "MODIFY a INT FIRST"]
)
def test_fail_refuses_every_change_of_columns(alter: str) -> None:
    assert planned(alter, target(schema_changes="fail")).refused
    assert not planned("ALTER a SET DEFAULT 4", target(schema_changes="fail")).refused


def test_columns_under_policies() -> None:
    on = target(columns={"a": "drop", "b": {"mask": 2}, "z": {"mask": 1}})
    assert shown(planned("DROP a, ADD z VARCHAR(5) DEFAULT 'abc'", on))[-1].endswith(
        f"= CAST(X'{b'**c'.hex()}' AS STRING)"
    )
    assert planned("RENAME COLUMN a TO e", on).unknown  # its values are not in the lake
    assert planned("RENAME COLUMN b TO e", on).unknown  # they are there masked


def test_the_difference_of_two_definitions() -> None:
    before, after = schema_of(TABLE), schema_of(TABLE.replace("c DECIMAL(10,2), ", "").replace("a INT", "a BIGINT"))
    columns = columns_of(
        state_of([(f.name, f.name, f.dataType) for f in columns_of_schema(before, target().policies).fields])
    )
    evolution = plan(target(), columns, differences(before, after), before, after)
    assert shown(evolution) == ["id int", "a bigint", "b string", "d date", "h string"]
    renamed = schema_of(TABLE.replace(" c ", " cc "))
    assert plan(target(), columns, differences(before, renamed), before, renamed).unknown_new


def test_a_copy_computes_generated_columns_anew() -> None:
    before, after = schema_of(GENERATED), schema_of(GENERATED.replace("DECIMAL(5,1)", "DECIMAL(8,3)"))
    columns = columns_of(
        state_of([(f.name, f.name, f.dataType) for f in columns_of_schema(before, target().policies).fields])
    )
    assert "another type" in "; ".join(plan(target(), columns, differences(before, after), before, after).unknown)
    assert not plan(target(), columns, differences(before, before), before, before).unknown


@pytest.mark.parametrize("kind", ["ENUM", "SET"])
def test_members_in_other_letters_are_other_texts(kind: str) -> None:
    create = f"CREATE TABLE t (id INT PRIMARY KEY, e {kind}('A','b')) CHARSET utf8mb4"
    assert list(planned(f"MODIFY e {kind}('a','b')", target(), create).doubts.values()) == [
        ("e", "e", "column e: members that are no longer there become other values")
    ]
    assert not planned(f"MODIFY e {kind}('A','b')", target(), create).doubts


# --- steps -----------------------------------------------------------------------------------------------------------


def alter(fields: list[Field], step: str) -> list[Field]:
    """Returns the fields after a step of one level in Delta."""
    words = step.replace("`", "").replace(",", "").split()
    if words[0] == "RENAME":
        return [(words[4] if name == words[2] else name, physical, kind) for name, physical, kind in fields]
    if words[0] == "DROP":
        gone = {word.strip("(),") for word in words[2:]}
        return [field for field in fields if field[0] not in gone]
    if words[0] == "ADD":
        new_fields, text = list(fields), step[step.index("(") + 1 : -1]
        for part in text.split(", "):
            name, kind, *where = part.replace("`", "").split()
            at = 0 if where == ["FIRST"] else 1 + [f[0] for f in new_fields].index(where[1])
            new_fields.insert(
                at, (name, f"col-{name}-{len(new_fields)}", {"int": t.IntegerType(), "bigint": t.LongType()}[kind])
            )
        return new_fields
    changed_field = next(field for field in fields if field[0] == words[2])
    if words[3] == "TYPE":
        return [(f[0], f[1], t.LongType()) if f is changed_field else f for f in fields]
    other_fields = [field for field in fields if field is not changed_field]
    at = 0 if words[3] == "FIRST" else 1 + [f[0] for f in other_fields].index(words[4])
    return [*other_fields[:at], changed_field, *other_fields[at:]]


INT, LONG = t.IntegerType(), t.LongType()
START: list[Field] = [("id", "id", INT), ("a", "a", INT), ("b", "b", INT), ("c", "c", INT)]
GOALS = Goals(
    # a and b swap their names, c is dropped and added anew in front, d is new
    (Goal("c", INT, None), Goal("b", INT, "a"), Goal("id", LONG, "id"), Goal("a", INT, "b"), Goal("d", INT, None)),
    {name: name for name in ("id", "a", "b", "c")},
    {},
)


def test_steps_lead_to_the_goal_whoever_runs_them() -> None:
    fields, steps = START, []
    while (step := next_step(state_of(fields), GOALS)) is not None:
        steps.append(step)
        fields = alter(fields, step)
        assert len(steps) < 30
    assert [(name, kind) for name, _, kind in fields] == [("c", INT), ("b", INT), ("id", LONG), ("a", INT), ("d", INT)]
    assert {name: physical for name, physical, _ in fields}.items() >= {"b": "a", "a": "b", "id": "id"}.items()
    assert fields[0][1] != "c"
    assert f"DROP COLUMNS (`{passing_name('c')}`)" in steps  # never by the name that the new column gets


def test_a_late_step_of_an_outdated_driver_does_no_harm() -> None:
    """Each step that was due at some time fails, or is mended, after the table has reached its goal."""
    fields, seen = START, []
    while (step := next_step(state_of(fields), GOALS)) is not None:
        seen.append(step)
        fields = alter(fields, step)
    for step in seen:
        names = {name for name, _, _ in fields}
        words = step.replace("`", "").split()
        if words[0] == "DROP":
            assert words[2].strip("()") not in names  # so it fails
        elif words[0] == "RENAME" and words[2] in names:
            late = alter(fields, step)
            while (mending := next_step(state_of(late), GOALS)) is not None:
                late = alter(late, mending)
            assert late == fields


def test_types() -> None:
    assert holds(t.LongType(), t.IntegerType())
    assert holds(t.DecimalType(20, 0), t.LongType())
    assert not holds(t.IntegerType(), t.LongType())
    assert not holds(t.DecimalType(12, 3), t.DecimalType(12, 2))
    assert not holds(t.StringType(), t.IntegerType())
    assert widens(t.IntegerType(), t.DecimalType(12, 2))
    assert not widens(t.ShortType(), t.DecimalType(6, 0))
    assert not widens(t.DateType(), t.TimestampNTZType())


# --- effects on tables -----------------------------------------------------------------------------------------------


def statement(sql: str, seq: int = 1) -> DdlStatement:
    return DdlStatement(seq, sql, STRICT, classify(sql, "shop", STRICT, MYSQL), datetime(2026, 1, 1, tzinfo=UTC), None)


def test_renames_are_followed_in_order() -> None:
    swap = statement("RENAME TABLE a TO tmp, b TO a, tmp TO b")
    origins = {name: effect.origin for name in "ab" if (effect := effect_on(f"shop.{name}", swap)) is not None}
    assert origins == {"a": "shop.b", "b": "shop.a"}
    gone = effect_on("shop.tmp", swap)
    assert gone is not None
    assert gone.drops
    moved = effect_on("shop.c", statement("ALTER TABLE t ADD z INT, RENAME TO c"))
    assert moved is not None
    assert (moved.origin, len(moved.changes)) == ("shop.t", 1)


def test_a_statement_without_effect_has_none() -> None:
    assert effect_on("shop.t", statement("CREATE INDEX i ON t (a)")) is None
    assert effect_on("shop.t", statement("ALTER TABLE other ADD z INT")) is None
    assert effect_on("shop.t", statement("DROP DATABASE shop")) is not None


def test_every_statement_of_the_corpus_is_decided() -> None:
    """Each leads to a plan, or to a refusal that is an error of Towpath."""
    decided: Counter[str] = Counter()
    for case in corpus():
        server = ServerVersion.parse("9.1.0" if case.servers[0].startswith("mysql") else "11.8.3-MariaDB")
        for table in case.tables:
            [create] = classify(table.create, "shop", case.sql_mode, server).changes
            assert isinstance(create, CreateTable)
            before: TableSchema | None = create.schema
            for sql in case.sql:
                classified = classify(sql, "shop", case.sql_mode, server)
                ddl = DdlStatement(1, sql, case.sql_mode, classified, datetime(2026, 1, 1, tzinfo=UTC), None)
                effect = effect_on(f"shop.{table.name}", ddl)
                if effect is None or effect.origin != f"shop.{table.name}" or before is None:
                    decided["no columns"] += 1
                    continue
                fields = columns_of_schema(before, target().policies).fields
                columns = columns_of(state_of([(f.name, f.name, f.dataType) for f in fields]))
                try:
                    after, followed = follow(before, effect.changes, case.sql_mode, None)
                except UnsupportedDdlError:
                    decided["refused"] += 1
                    continue
                try:
                    wanted = plan(target(), columns, followed, before, after)
                except CdcError:
                    decided["refused"] += 1
                    continue
                unknown = bool(wanted.unknown or wanted.unknown_new)
                decided["snapshot" if unknown else "rewritten" if wanted.rewrites else "altered"] += 1
                decided["looked at"] += bool(wanted.doubts or any(column.is_computed for column in wanted.columns))
                before = after
    assert decided["altered"] > 100
    assert decided["snapshot"] > 10 and decided["looked at"] > 10
    assert sum(decided.values()) > 300
