"""Features of the server versions that stand in for others (``TOWPATH_SERVER_STANDINS``, see ``make test-versions``).

A test is written for the servers that it names. If an older version stands in for one of them, the test leaves out what
that version lacks: with :func:`needs` the whole test, with :func:`lacks` a part of it. Nothing is ever left out on the
servers that tests name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import pymysql
import pytest

from cdc.testing.servers import Server, find_kind
from cdc.testing.servers.kinds import ServerKind

SINCE: dict[str, dict[str, tuple[int, ...]]] = {
    "tagged GTIDs": {"mysql": (8, 3)},
    "VECTOR": {"mysql": (9, 0), "mariadb": (11, 7)},
    "UUID": {"mariadb": (10, 7)},
    "INET4": {"mariadb": (10, 10)},
    "compressed transactions": {"mysql": (8, 0, 20), "mariadb": (10, 2)},
    "zstd": {"mysql": (8, 0, 18)},
    "source_verify_checksum": {"mysql": (8, 0, 26)},
    "SSL variables that can be set": {"mysql": (8, 0, 16)},
    "CREATE TABLE SELECT": {"mysql": (8, 0, 21), "mariadb": (10, 0)},
    "semisync_source.so": {"mysql": (8, 0, 26)},
    "further plugins": {"mariadb": (11, 8)},
    "invisible keys": {"mysql": (8, 0, 30)},
    "rows without generated columns": {"mariadb": (11, 8)},
    "locks of prepared transactions": {"mysql": (8, 0, 33), "mariadb": (10, 5)},
    "CAST AS DOUBLE": {"mysql": (8, 0, 17)},
    "character sets of members": {"mysql": (8, 0, 33), "mariadb": (10, 5)},
    "CAST AS YEAR": {"mysql": (8, 0, 22)},
    "line ends of base64 in JSON": {"mysql": (8, 0, 33)},
    "long times in JSON": {"mysql": (9, 0)},
    "invisible columns": {"mysql": (8, 0, 23), "mariadb": (10, 3)},
    "binlog_expire_logs_seconds": {"mysql": (8, 0, 1), "mariadb": (10, 6)},
    "SHOW BINARY LOG STATUS": {"mysql": (8, 2)},
    "RESET BINARY LOGS AND GTIDS": {"mysql": (8, 2)},
}
"""The version since which a server has a feature; where that is not known, the first one that was tried and has it. A
family that is not named never has it."""

UNTIL: dict[str, dict[str, tuple[int, ...]]] = {
    "YEAR(2)": {"mysql": (5, 7)},
    "one transaction of CREATE TABLE SELECT": {"mysql": (5, 7)},
    "times by GTIDs alone": {"mysql": (5, 7)},
}
"""The version since which a server does not have a feature any more."""
_UNKNOWN = frozenset({1064, 1193, 1115, 1273, 1305, 1786, 1818, 4161})
"""Errors of statements that a server does not know: syntax, variable, character set, collation, function, type, and
CREATE TABLE … SELECT with GTIDs (before MySQL 8.0.21)."""
_Values = TypeVar("_Values")


def lacks(kind: str | Server, feature: str) -> bool:
    """Whether another version stands in for this kind of server, and does not have the feature."""
    server_kind = _kind(kind)
    if not server_kind.is_standin:
        return False
    flavor = "mysql" if server_kind.name.startswith("mysql") else "mariadb"
    if feature in UNTIL:
        return flavor in UNTIL[feature] and server_kind.release >= UNTIL[feature][flavor]
    since = SINCE[feature].get(flavor)
    return since is None or server_kind.release < since


def needs(kind: str | Server, feature: str) -> None:
    """Skips the test if the version that stands in for this kind of server does not have the feature."""
    if lacks(kind, feature):
        server_kind = _kind(kind)
        pytest.skip(
            f"{'.'.join(map(str, server_kind.release))}, which stands in for {server_kind.name}, has no {feature}"
        )


def with_types(kind: str | Server, types: Mapping[str, _Values]) -> dict[str, _Values]:
    """Returns those of the column types (``VECTOR(3)``) that the server has."""
    return {name: values for name, values in types.items() if not _lacks_type(kind, name)}


def _lacks_type(kind: str | Server, name: str) -> bool:
    word = re.split(r"\W", name, maxsplit=1)[0]
    return any(feature in (*SINCE, *UNTIL) and lacks(kind, feature) for feature in (name, word))


def is_unknown(kind: str | Server, error: pymysql.MySQLError) -> bool:
    """Whether a statement failed because the version that stands in for this kind of server does not know it."""
    return _kind(kind).is_standin and bool(error.args) and error.args[0] in _UNKNOWN


def status_statement(kind: str | Server) -> str:
    """Returns the statement that shows the position of the server's binlog."""
    return _either(kind, "SHOW BINARY LOG STATUS", "SHOW MASTER STATUS")


def reset_statement(kind: str | Server) -> str:
    """Returns the statement that deletes the server's binlog and GTIDs."""
    return _either(kind, "RESET BINARY LOGS AND GTIDS", "RESET MASTER")


def _either(kind: str | Server, new: str, old: str) -> str:
    server_kind = _kind(kind)
    return new if server_kind.name.startswith("mysql") and server_kind.release >= SINCE[new]["mysql"] else old


def _kind(kind: str | Server) -> ServerKind:
    return find_kind(kind) if isinstance(kind, str) else kind.kind
