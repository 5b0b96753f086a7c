"""Random work on a real server in several sessions, which survives the server's deaths.

Each step is drawn by the seed, and any may fail: a duplicate key, a lock, a table that another session has dropped, a
dead server. The binlog alone tells what was committed. Each changed row gets a fresh number in its first column,
``token``.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pymysql
from pymysql.cursors import Cursor

from cdc.binlog.positions import split_seq
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server
from tests.soak.histories.accounts import DATABASE, EXCLUDED
from tests.support.versions import lacks

_SESSIONS = 3
_ROWS = 200
"""Ids of rows that statements meet are below this; all sessions change the same rows."""
_TOKENS = 100_000
"""Tokens of one statement: more than any id."""
_PREPARED = "x1"
"""The table that XA transactions change, mostly: they keep their locks for long."""
_STABLE = ("t1", "t2", "t3")
"""Tables that are altered, and never dropped."""
_CHANGING = ("d1", "d2", "d3")
"""Tables that are created, renamed and dropped."""
_COLUMNS = "token BIGINT, id INT PRIMARY KEY, v LONGTEXT"
_MOST_PREPARED = 4
_BIG_VALUE, _BIG_ROWS = 100_000, (5, 15, 40)
_LOST_ERRORS = (pymysql.MySQLError, OSError)


def options(kind: str, rng: random.Random) -> tuple[str, ...]:
    """Returns the server's options: binlog files of random sizes, and no wait for a repair of MyISAM tables."""
    size = rng.choice((65536, 262144, 4 << 20))
    recover = ("--myisam-recover-options=FORCE",) if kind != "mysql9" else ("--myisam-recover-options=FORCE,BACKUP",)
    return (f"--max-binlog-size={size}", "--innodb-buffer-pool-size=64M", "--max-allowed-packet=64M", *recover)


class Workload:
    """Sessions that work from :meth:`start` to :meth:`stop`, also when the server is down in between."""

    def __init__(self, server: Server, seed: str, store: Path) -> None:
        """``store``: the folder of the store, where MySQL 5.6's sessions see how far capture is."""
        self.server = server
        self._store = store
        self.kind = server.kind.name
        self.is_mysql = self.kind.startswith("mysql")
        self.seed = seed
        self.done: Counter[str] = Counter()
        """Steps that succeeded, by their names."""
        self.failed: Counter[str] = Counter()
        self.prepared: list[str] = []
        """XA transactions that wait for their end, in any session."""
        self._tokens = itertools.count(1)
        self._xids = itertools.count(1)
        self._large_left = 6
        self._stopping = threading.Event()
        self._mutex = threading.Lock()
        self._threads = [threading.Thread(target=_Session(self, n).run, daemon=True) for n in range(_SESSIONS)]
        self._threads.append(threading.Thread(target=_DdlSession(self).run, daemon=True))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def pause(self, seconds: float) -> None:
        """Waits, but not beyond the end."""
        self._stopping.wait(seconds)

    def create(self) -> None:
        """Creates the databases and tables."""
        statements = [f"CREATE DATABASE {DATABASE}", "CREATE DATABASE other"]
        captured = dict.fromkeys((*_STABLE, *_CHANGING, EXCLUDED, _PREPARED), "InnoDB") | {"m1": "MyISAM"}
        if not self.is_mysql:
            captured["a1"] = "Aria"
        statements += [f"CREATE TABLE {DATABASE}.{name} ({_COLUMNS}) ENGINE={e}" for name, e in captured.items()]
        statements += [
            f"CREATE TABLE other.o1 ({_COLUMNS})",
            f"CREATE TABLE other.{_PREPARED} ({_COLUMNS})",
            f"CREATE TABLE {DATABASE}.plain (token BIGINT, id INT, v LONGTEXT)",
            f"CREATE TABLE {DATABASE}.log (token BIGINT, n INT AUTO_INCREMENT PRIMARY KEY)",
        ]
        logging = f"INSERT INTO {DATABASE}.log (token) VALUES (NEW.token)"
        statements.append(f"CREATE TRIGGER {DATABASE}.t2_log AFTER INSERT ON {DATABASE}.t2 FOR EACH ROW {logging}")
        if self.kind == "mysql9":
            statements.append(f"CREATE TABLE {DATABASE}.j1 (token BIGINT, id INT PRIMARY KEY, j JSON)")
        self.server.execute(*statements)

    def fresh(self) -> int:
        """Returns a number to which a statement adds an id for each row's token."""
        return next(self._tokens) * _TOKENS

    def new_xid(self) -> str:
        return f"x{next(self._xids)}"

    def may_be_large(self) -> bool:
        """Whether another transaction of megabytes may begin: their number is limited."""
        with self._mutex:
            self._large_left -= 1
            return self._large_left >= 0

    def take_prepared(self, rng: random.Random) -> str | None:
        with self._mutex:
            return self.prepared.pop(rng.randrange(len(self.prepared))) if self.prepared else None

    def add_prepared(self, xid: str) -> None:
        with self._mutex:
            self.prepared.append(xid)

    def wait_for_capture(self, cursor: Cursor) -> None:
        """Waits until capture has stored what the server has committed by now. Capture of MySQL 5.6 needs that between
        two DDL statements of one table, because its binlog does not name columns."""
        cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
        assert row is not None
        end = (int(row[0].rpartition(".")[2]), int(row[1]))
        while not self.stopping:
            parts = split_seq(StoreReader(self._store).last_seq() or 0)
            if (parts.file_number, parts.offset) >= end:
                return
            self.pause(0.1)

    def forget_lost_prepared(self) -> None:
        """Rolls back what a killed MySQL 5.6 still holds prepared: it has not logged it, and blocks others by it."""
        if self.kind != "mysql56":
            return
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            for row in cursor.fetchall():
                with suppress(pymysql.err.OperationalError):  # a session has just prepared it
                    cursor.execute(f"XA ROLLBACK '{row[3]}'")


class _Connected:
    """Steps on one connection after another, each drawn from a deck with all kinds of steps."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload = workload
        self.rng = random.Random(f"{workload.seed} {name}")
        self.connection: pymysql.Connection[Cursor] | None = None
        self.cursor: Cursor

    def steps(self) -> list[Callable[[], None]]:
        """Returns the kinds of steps, as often as they come in a deck."""
        raise NotImplementedError

    def run(self) -> None:
        deck: Iterator[Callable[[], None]] = iter(())
        while not self.workload.stopping:
            step = next(deck, None)
            if step is None:
                deck = iter(self.rng.sample(all_of := self.steps(), len(all_of)))
                continue
            name = step.__name__.strip("_")
            try:
                if self.connection is None:
                    self._connect()
                step()
                self.workload.done[name] += 1
                self.workload.pause(self.rng.uniform(0, 0.02))
            except _LOST_ERRORS:
                self.workload.failed[name] += 1
                self._recover()
        self.disconnect()

    def _recover(self) -> None:
        """Rolls back what a failed step has left open; if that fails too, the next step connects again."""
        try:
            if self.connection is not None:
                self.cursor.execute("ROLLBACK")
        except _LOST_ERRORS:
            self.disconnect()
        if self.connection is None:
            self.workload.pause(0.02)

    def _connect(self) -> None:
        self.connection = self.workload.server.connect()
        self.cursor = self.connection.cursor()
        self.cursor.execute("SET SESSION innodb_lock_wait_timeout = 1, SESSION lock_wait_timeout = 1")

    def disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(*_LOST_ERRORS):
                connection.close()

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)


class _Session(_Connected):
    """Changes rows."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, f"session {number}")

    def steps(self) -> list[Callable[[], None]]:
        often = [self._one_row, self._rows, self._update, self._transaction, self._not_transactional]
        now_and_then = [
            self._insert_select, self._rolled_back, self._savepoint, self._other_database, self._excluded_table,
            self._xa_one_session, self._key_change, self._mixed_tables,
        ]  # fmt: skip
        rarely = [self._large, self._rotation, self._large_rolled_back]
        kind = self.workload.kind
        if kind != "mysql56":
            now_and_then += [self._xa_prepare, self._xa_end, self._xa_one_phase]
            now_and_then += [] if lacks(kind, "compressed transactions") else [self._compression]
        if kind == "mysql9":
            now_and_then += [self._json, self._json, self._partial_json]
            now_and_then += [] if lacks(kind, "tagged GTIDs") else [self._tag]
        if not self.workload.is_mysql:
            now_and_then.append(self._mixed_engines)
        return [*often * 6, *now_and_then * 2, *rarely]

    # ------------------------------------------------------------ statements

    def _table(self) -> str:
        name = self.rng.choice((*_STABLE, *_STABLE, *_CHANGING, "plain"))
        return f"{DATABASE}.{name}"

    def _value(self) -> str:
        return self.rng.choice(
            ("NULL", "''", "'short'", "'a line\\nand another'", "REPEAT('text ', 50)", "REPEAT('abcdefgh', 500)")
        )

    def _ids(self, count: int) -> list[int]:
        return self.rng.sample(range(_ROWS), count)

    def _insert(self, table: str, count: int) -> str:
        base, value = self.workload.fresh(), self._value()
        rows = ", ".join(f"({base + n}, {n}, {value})" for n in self._ids(count))
        how = self.rng.choice(("REPLACE INTO", "INSERT IGNORE INTO", "INSERT INTO"))
        update = " ON DUPLICATE KEY UPDATE token = VALUES(token), v = VALUES(v)" if how == "INSERT INTO" else ""
        return f"{how} {table} (token, id, v) VALUES {rows}{update}"

    def _some_rows(self) -> str:
        first = self.rng.randrange(_ROWS)
        return f"WHERE id BETWEEN {first} AND {first + self.rng.choice((0, 3, 40))}"

    def _update_of(self, table: str) -> str:
        return f"UPDATE {table} SET token = {self.workload.fresh()} + id, v = {self._value()} {self._some_rows()}"

    def _any(self, table: str | None = None) -> str:
        """Returns a statement that changes rows."""
        table = table or self._table()
        what = self.rng.random()
        if what < 0.5:
            return self._insert(table, self.rng.choice((1, 1, 3, 20)))
        return self._update_of(table) if what < 0.8 else f"DELETE FROM {table} {self._some_rows()}"

    # ------------------------------------------------------------ steps: plain transactions

    def _one_row(self) -> None:
        self.sql(self._insert(self._table(), 1))

    def _rows(self) -> None:
        self.sql(self._insert(self._table(), self.rng.choice((5, 30))))

    def _update(self) -> None:
        table = self._table()
        self.sql(self._update_of(table), f"DELETE FROM {table} {self._some_rows()}")

    def _key_change(self) -> None:
        row_id, other = self._ids(2)
        self.sql(f"UPDATE {self._table()} SET token = {self.workload.fresh()}, id = {other} WHERE id = {row_id}")

    def _insert_select(self) -> None:
        base = self.workload.fresh()
        self.sql(
            f"INSERT IGNORE INTO {self._table()} (token, id, v) "
            f"SELECT {base} + id, id, v FROM {self._table()} {self._some_rows()}"
        )

    def _transaction(self) -> None:
        self.sql("BEGIN", *[self._any() for _ in range(self.rng.choice((2, 4, 10)))], "COMMIT")

    def _mixed_tables(self) -> None:
        tables = ("other.o1", f"{DATABASE}.{EXCLUDED}", f"{DATABASE}.t1", f"{DATABASE}.t2")
        self.sql("BEGIN", *[self._any(self.rng.choice(tables)) for _ in range(6)], "COMMIT")

    def _rolled_back(self) -> None:
        self.sql("BEGIN", *[self._any() for _ in range(3)], "ROLLBACK")

    def _savepoint(self) -> None:
        self.sql(
            "BEGIN", self._any(), "SAVEPOINT s1", self._any(), self._any(), "SAVEPOINT s2", self._any(),
            "ROLLBACK TO s2", self._any(), *self.rng.choice(((), ("ROLLBACK TO s1",))), self._any(), "COMMIT",
        )  # fmt: skip

    def _other_database(self) -> None:
        self.sql(self._any("other.o1"), self._any("other.o1"))

    def _excluded_table(self) -> None:
        self.sql(self._any(f"{DATABASE}.{EXCLUDED}"))

    def _not_transactional(self) -> None:
        name = self.rng.choice(("m1",) if self.workload.is_mysql else ("m1", "a1"))
        self.sql(self._any(f"{DATABASE}.{name}"))

    def _mixed_engines(self) -> None:
        end = self.rng.choice(("COMMIT", "ROLLBACK"))
        name = self.rng.choice(("m1", "a1"))
        self.sql("BEGIN", self._any(), self._any(f"{DATABASE}.{name}"), self._any(), end)

    # ------------------------------------------------------------ steps: megabytes

    def _large(self) -> None:
        self._megabytes("COMMIT")

    def _large_rolled_back(self) -> None:
        self._megabytes("ROLLBACK")

    def _megabytes(self, end: str) -> None:
        if self.workload.may_be_large():
            self.sql("BEGIN", *self._large_changes(), end)
            self.workload.done["megabytes"] += 1

    def _large_changes(self) -> Iterator[str]:
        table, count = f"{DATABASE}.{self.rng.choice(_STABLE)}", self.rng.choice(_BIG_ROWS)
        first = self.rng.randrange(1000, 90_000)
        for n in range(first, first + count):
            token = self.workload.fresh() + n
            yield f"REPLACE INTO {table} (token, id, v) VALUES ({token}, {n}, REPEAT('{n:05}', {_BIG_VALUE // 5}))"
        yield f"DELETE FROM {table} WHERE id >= 1000 LIMIT {count // 2}"

    # ------------------------------------------------------------ steps: the binlog's forms

    def _rotation(self) -> None:
        self.sql("FLUSH BINARY LOGS")

    def _compression(self) -> None:
        on = self.rng.choice(("ON", "OFF"))
        if self.workload.is_mysql:
            self.sql(f"SET SESSION binlog_transaction_compression = {on}")
        else:
            self.sql("SET GLOBAL log_bin_compress_min_len = 50", f"SET GLOBAL log_bin_compress = {on}")

    def _tag(self) -> None:
        self.sql(f"SET GTID_NEXT = '{self.rng.choice(('AUTOMATIC', 'AUTOMATIC:one', 'AUTOMATIC:another_tag'))}'")

    def _partial_json(self) -> None:
        self.sql(f"SET SESSION binlog_row_value_options = '{self.rng.choice(('', 'PARTIAL_JSON', 'PARTIAL_JSON'))}'")

    def _json(self) -> None:
        base, n, key = self.workload.fresh(), self.rng.randrange(1000), self.rng.choice("ab")
        change = self.rng.choice(
            (
                f"JSON_SET(j, '$.{key}', 'v{n}', '$.list[0]', {n})",
                f"JSON_REPLACE(j, '$.list[1].x', {n})",
                f"JSON_REMOVE(JSON_SET(j, '$.k{n % 7}', REPEAT('z', {n % 50})), '$.k{(n + 1) % 7}')",
            )
        )
        document = json.dumps({"a": "a" * 20, "b": 1, "list": [1, {"x": 2}, None], "long": "l" * 100})
        self.sql(
            f"INSERT IGNORE INTO {DATABASE}.j1 (token, id, j) VALUES ({base}, {n % 50}, '{document}')",
            f"UPDATE {DATABASE}.j1 SET token = {self.workload.fresh()} + id, j = {change} {self._some_rows()}",
        )

    # ------------------------------------------------------------ steps: XA

    @contextmanager
    def _xa(self) -> Iterator[str]:
        """Changes rows in an XA transaction, and prepares it."""
        xid = self.workload.new_xid()
        table = f"{DATABASE}.{_PREPARED}"
        rows = ", ".join(f"({self.workload.fresh()}, {int(xid[1:]) * 10 + 100_000 + n}, 'xa')" for n in range(3))
        self.sql(f"XA START '{xid}'", f"INSERT INTO {table} (token, id, v) VALUES {rows}")
        if self.rng.random() < 0.5:
            self.sql(self._any(table), self._any(f"other.{_PREPARED}"))
        if self.rng.random() < 0.1:
            self.sql(self._any())
        self.sql(f"XA END '{xid}'")
        yield xid

    def _xa_one_session(self) -> None:
        with self._xa() as xid:
            self.sql(f"XA PREPARE '{xid}'", f"XA {self.rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} '{xid}'")

    def _xa_one_phase(self) -> None:
        with self._xa() as xid:
            self.sql(f"XA COMMIT '{xid}' ONE PHASE")

    def _xa_prepare(self) -> None:
        """Prepares a transaction that another session ends, much later perhaps."""
        if len(self.workload.prepared) < _MOST_PREPARED:
            with self._xa() as xid:
                self.sql(f"XA PREPARE '{xid}'")
                self.disconnect()
                self.workload.add_prepared(xid)

    def _xa_end(self) -> None:
        xid = self.workload.take_prepared(self.rng)
        if xid is None:
            return
        try:
            self.sql(f"XA {self.rng.choice(('COMMIT', 'COMMIT', 'ROLLBACK'))} '{xid}'")
        except pymysql.MySQLError as error:
            if error.args and error.args[0] != 1397:  # unknown: the server has not kept it, or it has ended
                self.workload.add_prepared(xid)
            raise


class _DdlSession(_Connected):
    """Changes tables."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload, "ddl")

    def steps(self) -> list[Callable[[], None]]:
        steps = [
            self._create, self._create, self._add, self._add, self._drop_column, self._modify, self._rename, self._swap,
            self._truncate, self._drop, self._rename_away, self._other_ddl, self._index,
        ]  # fmt: skip
        if self.workload.kind != "mysql56" and not lacks(self.workload.kind, "CREATE TABLE SELECT"):
            steps.append(self._create_select)
        return steps

    def _connect(self) -> None:
        self.workload.pause(self.rng.uniform(0.05, 0.3))
        super()._connect()
        if self.workload.kind == "mysql56":  # the statement before may have come before the server's death
            self.workload.wait_for_capture(self.cursor)

    def sql(self, *statements: str) -> None:
        for statement in statements:
            super().sql(statement)
            self.workload.pause(self.rng.uniform(0.02, 0.25))
            if self.workload.kind == "mysql56":
                self.workload.wait_for_capture(self.cursor)

    def _changing(self) -> str:
        return f"{DATABASE}.{self.rng.choice(_CHANGING)}"

    def _altered(self) -> str:
        return f"{DATABASE}.{self.rng.choice((*_CHANGING, *_STABLE, 'm1', 'plain'))}"

    def _create(self) -> None:
        engines = ("InnoDB", "InnoDB", "MyISAM") if self.workload.is_mysql else ("InnoDB",)
        engine = self.rng.choice(engines)
        for name in _CHANGING:
            self.sql(f"CREATE TABLE IF NOT EXISTS {DATABASE}.{name} ({_COLUMNS}) ENGINE={engine}")

    def _create_select(self) -> None:
        name = f"{DATABASE}.c{self.rng.randrange(3)}"
        self.sql(
            f"DROP TABLE IF EXISTS {name}",
            f"CREATE TABLE {name} AS SELECT {self.workload.fresh()} + id AS token, id, v FROM {DATABASE}.t3",
        )

    def _add(self) -> None:
        n = self.rng.randrange(4)
        place = self.rng.choice(("", " AFTER id", " AFTER token"))
        kind = self.rng.choice(("INT", "BIGINT DEFAULT 7", "VARCHAR(20) NOT NULL DEFAULT 'x'", "DATETIME NULL"))
        self.sql(f"ALTER TABLE {self._altered()} ADD COLUMN c{n} {kind}{place}")

    def _drop_column(self) -> None:
        self.cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns "
            f"WHERE table_schema = '{DATABASE}' AND column_name LIKE 'c_' AND table_name NOT LIKE '{EXCLUDED}%'"
        )
        rows = self.cursor.fetchall()
        if rows:
            table, column = self.rng.choice(sorted(rows))
            self.sql(f"ALTER TABLE {DATABASE}.{table} DROP COLUMN {column}")

    def _modify(self) -> None:
        kind = self.rng.choice(("LONGTEXT", "MEDIUMTEXT", "LONGTEXT CHARACTER SET latin1"))
        self.sql(f"ALTER TABLE {self._altered()} MODIFY COLUMN v {kind}")

    def _index(self) -> None:
        table = self._altered()
        self.sql(f"ALTER TABLE {table} ADD INDEX by_token (token)", f"ALTER TABLE {table} DROP INDEX by_token")

    def _rename(self) -> None:
        table = self._changing()
        self.sql(f"RENAME TABLE {table} TO {DATABASE}.renamed", f"RENAME TABLE {DATABASE}.renamed TO {table}")

    def _swap(self) -> None:
        table, other = (f"{DATABASE}.{name}" for name in self.rng.sample(_CHANGING, 2))
        self.sql(f"RENAME TABLE {table} TO {DATABASE}.held, {other} TO {table}, {DATABASE}.held TO {other}")

    def _rename_away(self) -> None:
        table, away = self._changing(), f"{DATABASE}.{EXCLUDED}_{self.rng.randrange(3)}"
        self.sql(f"DROP TABLE IF EXISTS {away}", f"RENAME TABLE {table} TO {away}")
        self.sql(self._fill(away), f"RENAME TABLE {away} TO {table}", self._fill(table))

    def _fill(self, table: str) -> str:
        return f"INSERT INTO {table} (token, id, v) VALUES ({self.workload.fresh()}, {self.rng.randrange(_ROWS, 999)}, 'r')"

    def _truncate(self) -> None:
        self.sql(f"TRUNCATE TABLE {self._altered()}")

    def _drop(self) -> None:
        self.sql(f"DROP TABLE {self._changing()}")

    def _other_ddl(self) -> None:
        self.sql(
            "DROP TABLE IF EXISTS other.o2",
            f"CREATE TABLE other.o2 ({_COLUMNS})",
            f"ALTER TABLE {DATABASE}.{EXCLUDED} COMMENT = '{self.rng.randrange(1000)}'",
        )
