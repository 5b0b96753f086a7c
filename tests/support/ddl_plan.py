"""Plans the cases of the DDL corpus as ``cdc plan`` does, over the definitions that a real server shows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pymysql

from cdc.binlog.sql.schemas import KnownPartitions, Schemas
from cdc.binlog.sql.server import ServerVersion
from cdc.config import DestinationConfig, SourceConfig, TablesConfig, parse
from cdc.lake.migration.planner import ORDER, Kind, Planner, Session, StatementVerdict, TableVerdict
from cdc.lake.migration.script import ScriptStatement
from cdc.source.connection import connect
from cdc.source.schemas import read_partitions, read_schemas
from cdc.testing.servers import PASSWORD, Server
from tests.support.configurations import FILE, document
from tests.support.ddl_corpus import Case, cases_for

LoopKind = Literal["equal", "snapshot", "refused", "wrong"]
"""The outcome of a case in the loop (:mod:`tests.support.ddl_loop`): a snapshot of columns alone counts as one."""
_FOLLOWED = ("none", "rows", "in place", "rewrite")


@dataclass(frozen=True)
class Definitions:
    """All tables of the corpus on one server, in the database ``d``, as capture stores them."""

    server: ServerVersion
    schemas: Schemas

    def of(self, case: Case) -> Schemas:
        """Returns those that a case has before its statements."""
        names = [f"d.{table.name}" for table in case.tables]
        partitions = self.schemas.partitions or {}
        return self.schemas.model_copy(
            update={
                "tables": {name: self.schemas.tables[name] for name in names},
                "partitions": {name: partitions[name] for name in names if name in partitions},
            }
        )


def read_definitions(server: Server) -> Definitions:
    """Makes all tables of a server's cases, and reads their definitions."""
    os.environ.setdefault("TOWPATH_TEST_PASSWORD", PASSWORD)
    database = f"plan{os.getpid()}"
    tables = {table.name: table for case in cases_for(server.kind.name) for table in case.tables}
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {database} CHARACTER SET utf8mb4")
        cursor.execute(f"USE {database}")
        cursor.execute("SET SESSION sql_mode = 'NO_ENGINE_SUBSTITUTION'")
        for table in tables.values():
            try:
                cursor.execute(table.create)
            except pymysql.MySQLError as error:
                raise AssertionError(f"{server.kind.name}: {error}: {table.create}") from None
        cursor.execute("SELECT VERSION()")
        ((version_text,),) = cursor.fetchall()
        version = ServerVersion.parse(str(version_text))
    assert version is not None
    settings = SourceConfig(url=server.url, password_env="TOWPATH_TEST_PASSWORD", server_id=78)
    included = TablesConfig(include=(re.escape(database) + r"\..*",))
    with connect(settings) as source:
        schemas, partitions = read_schemas(source, included), read_partitions(source, included)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {database}")
    named = {f"d.{name.partition('.')[2]}": schema for name, schema in schemas.tables.items()}
    partitions_by_table = {
        f"d.{name.partition('.')[2]}": KnownPartitions(clause=clause) for name, clause in partitions.items()
    }
    return Definitions(version, schemas.model_copy(update={"tables": named, "partitions": partitions_by_table}))


def config_of(case: Case, mode: str = "upsert", keyless: Sequence[str] = ()) -> DestinationConfig:
    """Returns the configuration of the loop for a case. ``keyless``: tables without a key that its statements make."""
    names = [f"d.{table.name}" for table in case.tables if "PRIMARY KEY" not in table.create.upper()]
    overrides = {name: {"mode": "append"} for name in dict.fromkeys([*names, *keyless])}
    text = document(tables__include=[r"d\..*"], tables__overrides=overrides, apply__mode=mode)
    return parse(text, FILE)


def plan_case(case: Case, definitions: Definitions, mode: str = "upsert") -> list[StatementVerdict]:
    """Returns the verdicts about the statements of a case. As in the loop, new tables without a key are changelogs."""
    statements = [ScriptStatement(number, number, sql) for number, sql in enumerate(case.sql, 1)]
    session = Session(definitions.server, case.sql_mode, "d", "+00:00")
    planner = Planner(config_of(case, mode), definitions.of(case), session)
    verdicts = planner.run(statements)
    keyless = [
        name
        for name, schema in planner.tables.items()
        if schema is not None and not schema.primary_key and name not in definitions.of(case).tables
    ]
    if not keyless:
        return verdicts
    return Planner(config_of(case, mode, keyless), definitions.of(case), session).run(statements)


def loop_kinds(verdicts: Sequence[StatementVerdict]) -> set[LoopKind]:
    """Returns what the loop may show of a case: one kind, or two if that depends on rows."""
    tables = [table for verdict in verdicts for table in verdict.tables]
    if any(verdict.error for verdict in verdicts):
        return {"wrong"}
    return {
        _loop_kind(max((kind(table) for table in tables), key=ORDER.index, default="none")) for kind in (_best, _worst)
    }


def _best(table: TableVerdict) -> Kind:
    return table.kind


def _worst(table: TableVerdict) -> Kind:
    return table.gravest


def _loop_kind(kind: Kind) -> LoopKind:
    if kind in _FOLLOWED:
        return "equal"
    assert kind in ("snapshot", "refused", "wrong")
    return kind
