"""Checks of the user's privileges on the source, as SHOW GRANTS prints them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from cdc.base.errors import SourceRefusedError
from cdc.config import TablesConfig
from cdc.source.connection import query, quoted
from cdc.source.findings import Advice, Finding, error, ok, warning
from cdc.source.server import Connection, ServerInfo

_GRANT = re.compile(
    r"GRANT (?P<what>.+?) ON (?:TABLE )?(?P<scope>\*\.\*|`(?:[^`]|``)*`\.(?:\*|`(?:[^`]|``)*`)) TO ", re.DOTALL
)
_UNREADABLE = """
SELECT DISTINCT TABLE_SCHEMA AS db, TABLE_NAME AS tab FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA IN ({marks}) AND NOT FIND_IN_SET('select', PRIVILEGES)
"""
_ALL = frozenset({"ALL PRIVILEGES", "ALL"})
_OF_COLUMNS = re.compile(r"[A-Z ]+\([^)]*\)")
_SELECT_OF_COLUMNS = re.compile(r"\bSELECT \(")


@dataclass
class Grants:
    """Privileges by scope. Database names are patterns, as in GRANT (``shop\\_%``)."""

    everywhere: set[str] = field(default_factory=set)
    databases: dict[str, set[str]] = field(default_factory=dict)
    of_columns: set[tuple[str, str]] = field(default_factory=set)
    """Tables (database and name) with SELECT on single columns."""

    def has(self, *names: str) -> bool:
        """Whether the user has any of these privileges globally."""
        return bool(self.everywhere & (_ALL | set(names)))

    def may(self, name: str, db: str) -> bool:
        """Whether the user has a privilege on every table of a database, including future ones."""
        if self.has(name):
            return True
        return any(what & (_ALL | {name}) and _like(pattern, db) for pattern, what in self.databases.items())


def read_grants(conn: Connection) -> Grants:
    """Reads the current user's privileges, including those of the active roles."""
    lines = [str(next(iter(row.values()))) for row in query(conn, "SHOW GRANTS")]
    return parse_grants(lines)


def parse_grants(lines: list[str]) -> Grants:
    """Parses the lines of SHOW GRANTS. Grants on whole tables, routines and roles are ignored."""
    grants = Grants()
    for line in lines:
        match = _GRANT.match(line)
        if match is None:
            continue
        # SELECT (a, b) grants columns, not the table.
        what = {part.strip() for part in _OF_COLUMNS.sub("", match["what"]).split(",")} - {""}
        scope = match["scope"]
        if scope == "*.*":
            grants.everywhere |= what
        elif scope.endswith(".*"):
            grants.databases.setdefault(scope[1:-3].replace("``", "`"), set()).update(what)
        elif _SELECT_OF_COLUMNS.search(match["what"]):
            db, table = (name.replace("``", "`") for name in scope[1:-1].split("`.`", 1))
            grants.of_columns.add((db, table))
    return grants


def _like(pattern: str, name: str) -> bool:
    """Whether a pattern of GRANT matches a database name, with the rules of LIKE."""
    regex = ""
    steps = iter(pattern)
    for char in steps:
        if char == "\\":
            regex += re.escape(next(steps, ""))
        else:
            regex += {"%": ".*", "_": "."}.get(char, re.escape(char))
    return re.fullmatch(regex, name, re.DOTALL) is not None


def check_privileges(info: ServerInfo, grants: Grants, account: str, gtid_mode: str | None = None) -> list[Finding]:
    """Checks that the user may read the binlog and ask for the current position. Snapshots need one more privilege on
    MySQL without GTIDs. ``gtid_mode`` is the server's variable."""
    findings: list[Finding] = []
    if not grants.has("REPLICATION SLAVE"):
        findings.append(
            error(
                "source: privileges",
                f"{account} may not read the binlog (REPLICATION SLAVE is missing)",
                grant := f"GRANT REPLICATION SLAVE ON *.* TO {account};",
                Advice("REPLICATION SLAVE is missing", f"{account} may not read the binlog", (grant,)),
            )
        )
    # MariaDB has the new name since 10.5.2.
    renamed = info.flavor == "mariadb" and info.version_info >= (10, 5, 2)
    client = "BINLOG MONITOR" if renamed else "REPLICATION CLIENT"
    if not grants.has("REPLICATION CLIENT", "BINLOG MONITOR"):
        findings.append(
            error(
                "source: privileges",
                f"{account} may not ask for the current position ({client} is missing)",
                grant := f"GRANT {client} ON *.* TO {account};",
                Advice(f"{client} is missing", f"{account} may not ask for the current position", (grant,)),
            )
        )
    findings = findings or [ok("source: privileges", f"{account} may read the binlog and ask for positions")]
    by_gtids = info.version_info >= (5, 7) and (gtid_mode or "OFF").upper() == "ON"
    if info.flavor == "mysql" and not by_gtids and not grants.has("PROCESS"):
        which = "MySQL 5.6" if info.version_info < (5, 7) else f"a server with gtid_mode={gtid_mode or 'OFF'}"
        findings.append(
            warning(
                "source: privileges",
                f"{account} may not see other sessions (PROCESS is missing), which snapshots of {which} need",
                f"GRANT PROCESS ON *.* TO {account};",
            )
        )
    return findings


def check_visibility(
    tables: TablesConfig, seen: int, databases: set[str], grants: Grants, account: str
) -> list[Finding]:
    """Checks that the user sees the included tables. A server hides tables that a user may not SELECT."""
    grant = f"GRANT SELECT ON *.* TO {account}; (or on each included database)"
    subject = "source: tables"
    if seen == 0 and not grants.has("SELECT"):
        return [error(subject, f"{account} sees no table that tables.include matches, because it lacks SELECT", grant)]
    if seen == 0:
        return [
            warning(
                subject,
                f"no table matches tables.include ({', '.join(tables.include)}) yet",
                "Check the expressions. They must match the whole of db.table.",
            )
        ]
    findings = [ok(subject, f"{seen} included in {', '.join(sorted(databases))}")]
    hidden = [pattern for pattern in tables.include if not _covered(tables.name(pattern), grants)]
    if hidden:
        findings.append(
            warning(
                subject,
                f"{account} may SELECT only some tables; others that {', '.join(hidden)} matches are invisible: "
                "their changes are captured, but no snapshot loads their rows, and nobody knows their definitions",
                grant,
            )
        )
    return findings


def _covered(pattern: str, grants: Grants) -> bool:
    """Whether the user may read every table that the pattern can match. Only plain database names are recognised."""
    if grants.has("SELECT"):
        return True
    db, dot, _ = pattern.partition("\\.")
    return bool(dot) and re.fullmatch(r"[A-Za-z0-9_$-]+", db) is not None and grants.may("SELECT", db)


def unreadable(conn: Connection, tables: Collection[tuple[str, str]], grants: Grants) -> set[str]:
    """Returns those of the visible tables (database and name; returned as ``db.table``) of which the user may not
    SELECT all columns."""
    if not tables:
        return set()
    databases = sorted({db for db, _ in tables})
    rows = query(conn, _UNREADABLE.format(marks=", ".join(["%s"] * len(databases))), databases)
    names = {f"{row['db']}.{row['tab']}" for row in rows}
    # A column on which a user has no privilege at all is not in information_schema.
    for db, table in grants.of_columns & set(tables):
        try:
            query(conn, f"SELECT * FROM {quoted(db)}.{quoted(table)} LIMIT 0")  # noqa: S608
        except SourceRefusedError:
            names.add(f"{db}.{table}")
    return names
