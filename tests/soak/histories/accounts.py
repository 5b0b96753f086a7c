"""The transactions of a history as an account lists them, and the comparison of two accounts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

DATABASE = "hist"
"""The captured database."""
EXCLUDED = "hidden"
"""Tables of it whose names begin so are not captured."""

_SHOWN_CHANGES = 6
_NEIGHBOURS = 2
_TABLE_NAME = re.compile(rf"`?\b{DATABASE}\b`?\s*\.\s*`?(\w+)")
_DDL = re.compile(r"(CREATE|ALTER|DROP|RENAME|TRUNCATE)\s+(?!(\S+ )?TRIGGER)", re.IGNORECASE)


class Change(NamedTuple):
    """A changed row, or a DDL statement."""

    kind: str
    """insert, update, delete or ddl."""
    table: str
    """The row's table, as db.table; empty for a statement."""
    before: int | None = None
    """The row's token before the change."""
    after: int | None = None
    statement: str = ""
    """The text of a DDL statement, with single spaces."""

    def __str__(self) -> str:
        return self.statement if self.kind == "ddl" else f"{self.kind} {self.table} {self.before} -> {self.after}"


class Transaction(NamedTuple):
    """A committed transaction: its changes of captured tables, in order."""

    gtid: str
    changes: tuple[Change, ...]

    def __str__(self) -> str:
        shown = "; ".join(str(change) for change in self.changes[:_SHOWN_CHANGES])
        more = len(self.changes) - _SHOWN_CHANGES
        return f"{self.gtid} [{shown}{f'; and {more} more' if more > 0 else ''}]"


@dataclass
class Account:
    """The transactions with captured changes, in the order of their commits."""

    transactions: list[Transaction] = field(default_factory=list)
    gtids: dict[str, set[int]] = field(default_factory=dict)
    """The numbers of all GTIDs, also of transactions without captured changes, by :func:`gtid_source`."""

    def add_gtid(self, gtid: str) -> None:
        """Counts a GTID as executed."""
        source, number = gtid_source(gtid)
        self.gtids.setdefault(source, set()).add(number)


def gtid_source(gtid: str) -> tuple[str, int]:
    """Splits a GTID into what its number counts for (``UUID:tag``, the UUID in plain hex digits and the tag often
    empty; MariaDB: the domain) and the number."""
    if ":" not in gtid:
        domain, _, number = gtid.split("-")
        return domain, int(number)
    uuid, *tag, number = gtid.split(":")
    return f"{uuid.replace('-', '')}:{''.join(tag)}", int(number)


def is_captured_table(name: str) -> bool:
    """Whether the rows of db.table are captured."""
    database, _, table = name.partition(".")
    return database == DATABASE and not table.startswith(EXCLUDED)


def is_captured_ddl(statement: str) -> bool:
    """Whether a statement is DDL that names a captured table. All tables are named with their database."""
    if not _DDL.match(statement):
        return False
    return any(not name.startswith(EXCLUDED) for name in _TABLE_NAME.findall(statement))


def ddl(statement: str) -> Change:
    """Returns the change of a statement."""
    return Change("ddl", "", statement=" ".join(statement.split()))


def first_difference(server: list[Transaction], store: list[Transaction]) -> str | None:
    """Describes the first transaction in which the store's list differs from the server's, with its neighbours in both
    and what has happened to it; None if the lists are equal."""
    if server == store:
        return None
    at = next((n for n, (expected, other) in enumerate(zip(server, store, strict=False)) if expected != other), None)
    at = min(len(server), len(store)) if at is None else at
    lines = [
        f"the store has {len(store)} transactions, the server {len(server)}; number {at} differs: {_what(server, store, at)}"
    ]
    for name, account in (("server", server), ("store", store)):
        shown = range(max(0, at - _NEIGHBOURS), min(len(account), at + _NEIGHBOURS + 1))
        lines += [f"{'>' if n == at else ' '} {name} {n}: {account[n]}" for n in shown]
    if at < min(len(server), len(store)) and server[at].gtid == store[at].gtid:
        lines.append(_first_change(server[at], store[at]))
    return "\n".join(lines)


def _what(server: list[Transaction], store: list[Transaction], at: int) -> str:
    if at >= len(store):
        return f"the store lacks the server's last {len(server) - at}"
    transaction = store[at]
    if transaction in store[:at]:
        return "the store has one twice"
    if at >= len(server) or transaction.gtid not in {sent.gtid for sent in server}:
        return "the store has one that the server has not"
    if transaction.gtid == server[at].gtid:
        return "its changes differ"
    if server[at] not in store:
        return "the store lacks one"
    return "the order differs"


def _first_change(server: Transaction, store: Transaction) -> str:
    pairs = enumerate(zip(server.changes, store.changes, strict=False))
    for n, (expected, other) in pairs:
        if expected != other:
            return f"  change {n}: server {expected}; store {other}"
    return f"  the server has {len(server.changes)} changes, the store {len(store.changes)}"
