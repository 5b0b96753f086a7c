"""XA transactions on real servers, prepared in one session and ended in another one."""

from __future__ import annotations

import time

import pymysql

from cdc.testing.servers import Server

_XAER_NOTA = 1397


def prepare(server: Server, xid: str, *statements: str, before: str | None = None) -> None:
    """Prepares an XA transaction in a session that ends then. ``before``: a statement of that session."""
    with server.connect() as session, session.cursor() as cursor:
        if before is not None:
            cursor.execute(before)
        for statement in (f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}"):
            cursor.execute(statement)


def end(server: Server, xid: str, *, commit: bool = True) -> None:
    """Commits or rolls back a prepared transaction, as soon as the session that prepared it has ended."""
    deadline = time.monotonic() + 20
    while True:
        try:
            server.execute(f"XA {'COMMIT' if commit else 'ROLLBACK'} {xid}")
            return
        except pymysql.err.MySQLError as error:
            if error.args[0] != _XAER_NOTA or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
