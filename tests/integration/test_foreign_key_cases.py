"""Cases of foreign keys, each in every mode: the Delta tables have the rows of the source."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.batches.service import BatchService
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.foreign_keys import MODES, present_rows, selected_rows

CASES = yaml.safe_load((Path(__file__).parents[1] / "ddl" / "foreign_keys.yaml").read_text("utf-8"))
SAMPLE = os.environ.get("TOWPATH_FOREIGN_KEY_CASES") or "1"
"""Cases that run on each server; ``all``."""


@dataclass(frozen=True)
class InMode:
    """A case whose tables are in one mode."""

    case: dict[str, Any]
    mode: str
    number: int

    def here(self, sql: str) -> str:
        return sql.removeprefix("? ").replace("@", f"_{self.mode}_{self.number}")

    @property
    def tables(self) -> list[str]:
        names = (re.match(r"CREATE TABLE (\w+@)", sql) for sql in self.case["create"])
        return [self.here(match[1]) for match in names if match is not None]


def _execute(server: Server, db: str, variant: InMode, statements: list[str]) -> None:
    """``?`` before a statement: the server may refuse it."""
    with server.connect() as connection, connection.cursor() as cursor:
        connection.autocommit(True)
        cursor.execute(f"USE `{db}`")
        for sql in statements:
            try:
                cursor.execute(variant.here(sql))
            except Exception:
                if not sql.startswith("? "):
                    raise


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "kind", ["mariadb11", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("mysql9", "mariadb10", "mysql56"))]
)
def test_each_mode_has_the_rows_of_the_source(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[Server], str], seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    chosen = CASES if SAMPLE == "all" else random.Random(seed).sample(CASES, int(SAMPLE))
    cases = [InMode(case, mode, number) for number, case in enumerate(chosen) for mode in MODES]
    overrides = ", ".join(f"DB.{name}: {{mode: {case.mode}}}" for case in cases for name in case.tables)
    loop = Loop(tmp_path, server, db, overrides=overrides, apply="on_error: park", start="now")
    for variant in cases:  # before capture begins: each CREATE TABLE would be a batch of its own
        _execute(server, db, variant, [sql for sql in variant.case["create"] if sql.startswith("CREATE TABLE")])
    loop.capture()
    for variant in cases:
        _execute(server, db, variant, [sql for sql in variant.case["create"] if not sql.startswith("CREATE TABLE")])
    loop.capture()
    loop.apply_all()
    for variant in cases:
        _execute(server, db, variant, variant.case["change"])
    loop.capture()
    loop.apply_all()
    reasons = {name: parked.reason for name, parked in BatchService(loop.config).subscription().parked.items()}
    assert reasons == {}
    wrong = []
    for variant in cases:
        for table in variant.tables:
            keys = _keys(server, db, table)
            shown, lake = selected_rows(server, db, table), present_rows(loop.config, db, table, keys)
            if shown != lake:
                wrong.append(f"{variant.case['name']}, {variant.mode}: {table} has {lake}, SELECT shows {shown}")
    assert not wrong, "\n".join(wrong)


def _keys(server: Server, db: str, table: str) -> list[str]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND "
            "column_key = 'PRI' ORDER BY ordinal_position",
            (db, table),
        )
        return [str(name) for (name,) in cursor.fetchall()]
