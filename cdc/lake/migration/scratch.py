"""Schemas on a real server that exist only while a plan is made."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pymysql

from cdc.base.errors import CdcError, SourceRefusedError, SourceUnavailableError
from cdc.base.log import get_logger
from cdc.binlog.sql.server import LATEST, ServerVersion
from cdc.config import SCRATCH_PREFIX
from cdc.source.connection import explain, query, quoted, server_of
from cdc.source.preflight import account_of
from cdc.source.server import Connection

Connect = Callable[[], Connection]
_TIMEOUTS = "SET SESSION lock_wait_timeout = 5, innodb_lock_wait_timeout = 5"
_OTHER_RUN = re.compile(rf"({SCRATCH_PREFIX}\d+_[0-9a-f]{{12}})_\d+")
_UNPRIVILEGED = frozenset({1044, 1142, 1143, 1227, 1370})
_READ_ONLY = 1290
_ANOTHER = "--server mysql://USER@HOST:PORT"
_GRANTED = "SELECT, INSERT, CREATE, ALTER, DROP, INDEX, REFERENCES"
_PATTERN = "`" + SCRATCH_PREFIX.replace("_", r"\_") + "%`"
_log = get_logger(__name__)


@dataclass
class Scratch:
    """The scratch schemas of one run, and the session that may change them."""

    connection: Connection
    version: ServerVersion
    by_database: Mapping[str, str]
    """The scratch schema of each database."""
    remarks: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        """The server's address."""
        return server_of(self.connection)

    def execute(self, sql: str) -> tuple[int, str] | None:
        """Executes a statement. Returns the number and the text of the server's error; None if there is none. Raises
        SourceUnavailableError, and SourceRefusedError for a privilege that the user lacks."""
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(sql)
        except (pymysql.err.Error, OSError) as error:
            failure = explain(error, self.place, "")
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if code in _UNPRIVILEGED:
                raise _unprivileged(self.connection, str(error.args[1])) from error
            if code == _READ_ONLY:
                raise SourceRefusedError(
                    "the server is read-only", place=f"server {self.place}", remedy=f"Name another: {_ANOTHER}."
                ) from error
            if isinstance(failure, SourceUnavailableError):
                raise failure from error
            return code, str(error.args[1])
        return None


def _unprivileged(connection: Connection, text: str) -> SourceRefusedError:
    """Returns the error for a user that may not work in scratch schemas. ``text``: the server's."""
    account = account_of(connection)
    return SourceRefusedError(
        f"{account} may not make schemas for a plan: {text.rstrip('.')}",
        place=f"server {server_of(connection)}",
        remedy=f"GRANT {_GRANTED} ON {_PATTERN}.* TO {account}; or name another server, such as one for tests: "
        f"{_ANOTHER}.",
    )


@contextmanager
def scratch_schemas(connect: Connect, databases: Mapping[str, str]) -> Iterator[Scratch]:
    """Makes an empty schema for each database, and drops them at the end, also after an error or an interrupt.
    ``databases``: each with its default character set and collation, as clauses of CREATE DATABASE.

    A named lock of the session says that the run is alive: schemas of runs that have none, because they were killed,
    are dropped first. Raises SourceRefusedError, SourceUnavailableError.
    """
    connection = connect()
    try:
        version = ServerVersion.parse(str(query(connection, "SELECT VERSION() AS version")[0]["version"])) or LATEST
        remarks = _settle(connection)
        name = f"{_prefix(connection)}{secrets.token_hex(6)}"
        query(connection, "SELECT GET_LOCK(%s, 0) AS locked", (name,))
        remarks += _remove_leftovers(connection)
        names = {database: f"{name}_{number}" for number, database in enumerate(databases, 1)}
        try:
            scratch = Scratch(connection, version, names, remarks)
            for database, schema in names.items():
                failure = scratch.execute(f"CREATE DATABASE {quoted(schema)} {databases[database]}")
                if failure is not None:
                    text = f"the server makes no schema: {failure[1]} (error {failure[0]})"
                    raise SourceRefusedError(
                        text, place=f"server {scratch.place}", remedy="Name a server of the source's version."
                    )
            yield scratch
        finally:
            connection.close()  # it may be in the middle of an answer
            _drop(connect, names.values())
    finally:
        if connection.open:
            connection.close()


def _prefix(connection: Connection) -> str:
    """Returns what the names of this server's scratch schemas begin with. Its id keeps a replica from taking those that
    it got from its source for its own."""
    return f"{SCRATCH_PREFIX}{query(connection, 'SELECT @@GLOBAL.server_id AS id')[0]['id']}_"


def _settle(connection: Connection) -> list[str]:
    """Prepares the session. Returns what the user has to know."""
    query(connection, _TIMEOUTS)
    if not query(connection, "SELECT @@GLOBAL.log_bin AS logs")[0]["logs"]:
        return []
    try:
        query(connection, "SET SESSION sql_log_bin = 0")
    except SourceRefusedError:
        text = (
            f"The binlog of {server_of(connection)} gets the statements in the scratch schemas ({SCRATCH_PREFIX}…), "
            "because the user may not switch it off (sql_log_bin). Captures of Towpath leave these schemas out; "
            "replicas and other readers see them come and go."
        )
        return [text]
    return []


def _remove_leftovers(connection: Connection) -> list[str]:
    """Drops the schemas of runs that were killed."""
    rows = query(connection, "SELECT SCHEMA_NAME AS name FROM information_schema.SCHEMATA")
    prefix, remarks = _prefix(connection), []
    query(connection, "SET SESSION foreign_key_checks = 0")  # a schema may have the parents of another's tables
    for schema in (str(row["name"]) for row in rows):
        match = _OTHER_RUN.fullmatch(schema)
        if match is None or not schema.startswith(prefix):
            continue
        if query(connection, "SELECT IS_FREE_LOCK(%s) AS free", (match[1],))[0]["free"] == 1:
            query(connection, f"DROP DATABASE IF EXISTS {quoted(schema)}")
            remarks.append(f"{schema}, which a plan that was killed had left, is dropped.")
    return remarks


def _drop(connect: Connect, schemas: Collection[str]) -> None:
    """Drops schemas in a session of its own. What cannot be dropped now is a leftover for the next run."""
    try:
        connection = connect()
    except CdcError as error:
        _log.warning("the scratch schemas stay until the next plan", schemas=list(schemas), reason=str(error))
        return
    with connection:
        with suppress(CdcError):  # it is logged then
            query(connection, f"{_TIMEOUTS}, foreign_key_checks = 0")
            query(connection, "SET SESSION sql_log_bin = 0")
        for schema in schemas:
            try:
                query(connection, f"DROP DATABASE IF EXISTS {quoted(schema)}")
            except CdcError as error:
                _log.warning("a scratch schema stays until the next plan", schema=schema, reason=str(error))
