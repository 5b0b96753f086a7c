"""Policies for columns and values, from a real source into Delta: dropped and masked values never arrive there."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.base.errors import ConfigError, TargetError, UnsupportedError
from cdc.batches.subscribers import accept_tables
from cdc.config import load
from cdc.lake import pipeline
from cdc.lake.apply import merge
from cdc.lake.runtime import session
from cdc.meta import open_meta
from cdc.testing.servers import Server
from tests.support.apply import Loop

Database = Callable[[Server], str]
KEY = "6b6579206f66207468652074657374"
APPLY = (
    "hash_key_env: TOWPATH_TEST_HASH_KEY, types: {tinyint(1): boolean, bit(1): boolean, time: microseconds, "
    "json: variant}, columns: {token: drop, pin: null}"
)
COLUMNS = "columns: {email: hash, phone: {mask: 3}, note: drop, salary: null, nick: {rename: alias}}"
PEOPLE = (
    "(id INT, email VARCHAR(50) PRIMARY KEY, phone VARCHAR(20), note TEXT, salary DECIMAL(10,2), nick VARCHAR(20),"
    " active TINYINT(1), flag BIT(1), at TIME(3), doc JSON, born DATE, small TINYINT)"
)


@pytest.fixture(autouse=True)
def _hash_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_TEST_HASH_KEY", KEY)


def digest(text: str) -> str:
    return hmac.digest(KEY.encode(), text.encode(), "sha256").hex()


def rows(loop: Loop, table: str, *columns: str, order: str) -> list[Any]:
    """Returns rows as Spark reads them, as tuples of these expressions."""
    spark = session.acquire(loop.config.spark).spark
    frame = spark.read.format("delta").load(str(loop.path(table))).orderBy(*order.split()).selectExpr(*columns)
    return [tuple(row) for row in frame.collect()]


def types(loop: Loop, table: str) -> dict[str, str]:
    spark = session.acquire(loop.config.spark).spark
    return dict(spark.read.format("delta").load(str(loop.path(table))).dtypes)


def person(i: int, born: str = "2001-02-03") -> str:
    return (
        f"({i}, 'ada{i}@example.org', '+49 30 12345{i}', 'a note {i}', {i}.50, 'Nick{i}', {i % 3}, b'{i % 2}',"
        f" '-12:00:0{i}.5', '{{\"n\": [{i}, null]}}', '{born}', {i})"
    )


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_every_policy_in_both_modes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(kind)
    overrides = f"DB.people: {{{COLUMNS}}}, DB.log: {{mode: append, {COLUMNS}}}"
    loop = Loop(tmp_path, server, database(server), overrides=overrides, apply=APPLY)
    plans: list[str] = []
    original = merge.read_changes

    def seen(*arguments: Any, **options: Any) -> Any:
        frame = original(*arguments, **options)
        plans.append(frame._jdf.queryExecution().toString())
        return frame

    monkeypatch.setattr(merge, "read_changes", seen)
    loop.sql(
        "SET sql_mode = ''",
        f"CREATE TABLE people {PEOPLE}",
        f"CREATE TABLE log {PEOPLE}",
        f"INSERT INTO people VALUES {person(1)}, {person(2, '0000-00-00')}, {person(3)}, {person(5)}, (4, 'd@x'{', NULL' * 10})",
        f"INSERT INTO log VALUES {person(1)}, {person(2, '0000-00-00')}",
        "UPDATE log SET phone = 'é€😀abc', note = 'other' WHERE id = 1",
        "DELETE FROM log WHERE id = 2",
        "ALTER TABLE people ADD COLUMN extra INT AFTER nick, ADD COLUMN token VARCHAR(9) NOT NULL DEFAULT 'secret',"
        " ADD COLUMN pin INT NOT NULL DEFAULT 77, ADD COLUMN more JSON",
        "ALTER TABLE people DROP COLUMN token",
        "UPDATE people SET extra = 8, more = '[1]' WHERE id = 1",
        "UPDATE people SET id = 30, email = 'new@x', phone = '12', note = 'other' WHERE id = 3",
        "DELETE FROM people WHERE id = 5",
    )
    loop.capture()
    applied = loop.apply_all()
    # In log the deletion has such a date as well; before images are not counted.
    assert [sum(result.null_dates for result in applied[table]) for table in ("people", "log")] == [1, 2]

    # MariaDB's JSON is text, and stays so.
    document = "variant" if kind == "mysql9" else "string"
    text = "to_json({})" if kind == "mysql9" else "{}"
    own = {
        "id": "int", "email": "string", "phone": "string", "salary": "decimal(10,2)", "alias": "string",
        "active": "boolean", "flag": "boolean", "at": "bigint", "doc": document, "born": "date", "small": "tinyint",
    }  # fmt: skip
    with_extra = list(own.items())
    with_extra[5:5] = [("extra", "int")]
    assert list(types(loop, "people").items()) == [*with_extra, ("pin", "int"), ("more", document)]
    assert list(types(loop, "log").items())[:11] == list(own.items())
    before = ",".join(f"{name}:{kind}" for name, kind in own.items())
    assert types(loop, "log")["_before"] == f"struct<{before}>"

    def n(i: int) -> str:
        return f'{{"n":[{i},null]}}' if kind == "mysql9" else f'{{"n": [{i}, null]}}'

    def us(i: int) -> int:
        return -((12 * 3600 + i) * 1_000_000 + 500_000)

    first = ("email", "phone", "salary", "alias", "active", "flag", "at", text.format("doc"), "born", "small")
    day = date(2001, 2, 3)
    masked = (digest("ada1@example.org"), "*" * 10 + "451", None, "Nick1", True)
    two = (digest("ada2@example.org"), "*" * 10 + "452", None, "Nick2", True)
    assert rows(loop, "people", "id", *first, "extra", "pin", text.format("more"), order="id") == [
        (1, *masked, True, us(1), n(1), day, 1, 8, None, "[1]"),
        (2, *two, False, us(2), n(2), None, 2, None, None, None),
        (4, digest("d@x"), *[None] * 12),
        (30, digest("new@x"), "12", None, "Nick3", False, True, us(3), n(3), day, 3, None, None, None),
    ]
    old = ("_before.email", "_before.phone", "_before.salary", "_before.alias", "_before.active")
    columns = ("_op", "id", *first[:5], "born", *old, text.format("_before.doc"), "_before IS NULL")
    assert rows(loop, "log", *columns, order="_seq _row") == [
        ("insert", 1, *masked, day, *[None] * 6, True),
        ("insert", 2, *two, None, *[None] * 6, True),
        ("update", 1, masked[0], "***abc", *masked[2:], day, *masked, n(1), False),
        ("delete", 2, *two, None, *two, n(2), False),
    ]

    # Neither plans nor files hold the key, or what was not wanted in the lake.
    assert plans and not [plan for plan in plans if KEY in plan or KEY.encode().hex() in plan]
    content = b"".join(file.read_bytes() for file in Path(loop.config.apply.target).rglob("*") if file.is_file())
    assert b"Nick1" in content
    assert not [word for word in (KEY, "ada1@", "d@x", "a note", "secret", "49 30") if word.encode() in content]
    recorded = json.loads(DeltaTable(str(loop.path("people"))).metadata().configuration["towpath.columns"])
    assert recorded["note"] == "drop"
    assert recorded["email"].startswith("hash with key ")


def test_changed_policies_and_impossible_ones_are_refused(tmp_path: Path, mysql9: Server, database: Database) -> None:
    loop = Loop(
        tmp_path,
        mysql9,
        database(mysql9),
        overrides="DB.t: {columns: {a: hash}}",
        apply="hash_key_env: TOWPATH_TEST_HASH_KEY",
    )
    loop.sql(
        "CREATE TABLE t (id TINYINT(1) PRIMARY KEY, a VARCHAR(9), b INT, d DATE)",
        "INSERT INTO t VALUES (1, 'x', 1, NULL)",
    )
    loop.capture()
    loop.apply_all()
    loop.sql("SET sql_mode = ''", "INSERT INTO t VALUES (2, 'y', 2, '0000-00-00')")
    loop.capture()
    lease = loop.fetch()
    text = loop.config.file.read_text(encoding="utf-8")

    def refused(columns: str, kind: type[Exception], words: str, apply: str = "", target: str = "lake") -> None:
        changed = text.replace("{columns: {a: hash}}", f"{{columns: {{{columns}}}{apply}}}")
        loop.config.file.write_text(changed.replace("target: lake", f"target: {target}"))
        if target != "lake":  # where the table is not there, which somebody has to accept
            accept_tables(open_meta(loop.config), "apply", {f"{loop.db}.t": None})
        with pytest.raises(kind, match=words):
            pipeline.merge(load(loop.config.file), lease)

    refused("a: keep", TargetError, "column a was written by the policy hash with key .* so far, .* now says keep")
    refused("a: drop", TargetError, "the configuration now says drop")
    refused(
        "a: hash, b: hash", TargetError, "column b was written by the policy keep .*the configuration now says hash"
    )
    refused("a: hash, b: {rename: c}", TargetError, "the configuration now says rename: c")
    refused("a: hash, b: {rename: D}", ConfigError, "columns.b: cannot be renamed to D, which the table has already")
    refused("a: hash, zz: drop", ConfigError, r"columns names zz, which the table does not have \(it has id, a, b, d")
    refused(
        "a: hash, b: {mask: 1}", ConfigError, "columns.b: the policy mask: 1 does not fit .* only texts can be masked"
    )
    refused("a: hash, id: null", TargetError, "column id was written by the policy keep .* says null")
    refused("id: null", ConfigError, "column id is part of the table's key, .* with the policy null", target="other")
    refused(
        "a: hash",
        TargetError,
        "column id was written by the policy keep .* as boolean",
        ", types: {tinyint(1): boolean}",
    )
    boolean = ", types: {tinyint(1): boolean}"
    refused("", ConfigError, r"column id is part of .* the policy types: \{tinyint\(1\): boolean\}", boolean, "other")
    refused("a: hash", UnsupportedError, "column d .*zero or impossible date", ", zero_dates: fail")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOWPATH_TEST_HASH_KEY", "another")
        refused("a: hash", TargetError, "hash with key .* the configuration now says hash with key ")
        patch.delenv("TOWPATH_TEST_HASH_KEY")
        refused("a: hash", ConfigError, "the environment variable TOWPATH_TEST_HASH_KEY is not set")
    loop.config.file.write_text(text)
    pipeline.merge(loop.config, lease)
    assert rows(loop, "t", "id", "a", "b", "d", order="id") == [(1, digest("x"), 1, None), (2, digest("y"), 2, None)]
