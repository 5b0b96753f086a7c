"""Statements about partitions reach Delta: the rows of the partitions go or move, exactly those, exactly once."""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import MergeFailedError, UnsupportedError
from cdc.batches.service import BatchService
from cdc.lake import pipeline
from cdc.lake.apply import commit
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.capturing import capturing
from tests.support.ddl_corpus import Case, cases_for
from tests.support.ddl_loop import ASKED, plain, quoted

Database = Callable[[Server], str]
MODES = ("upsert", "soft_delete", "scd2", "append")
SAMPLE = os.environ.get("TOWPATH_PARTITION_CASES") or "3"
"""Cases of the DDL corpus that run in each mode; ``all``."""
PARTS = (
    "PARTITION BY RANGE (y) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), "
    "PARTITION p2 VALUES LESS THAN MAXVALUE)"
)
CREATE = f"CREATE TABLE {{}} (id INT, y INT, v VARCHAR(9), PRIMARY KEY (id, y)) DEFAULT CHARSET = utf8mb4 {PARTS}"
ROWS = "INSERT INTO {} VALUES (1, 5, 'a'), (2, 15, 'b'), (3, 25, 'c'), (4, 9, 'd')"


@pytest.fixture(autouse=True)
def _hook() -> Iterator[None]:
    yield
    commit.before_statement = lambda table: None


def parked(loop: Loop) -> dict[str, str]:
    """Returns the reasons of parked tables, by ``db.table``."""
    return {name: entry.reason for name, entry in BatchService(loop.config).subscription("apply").parked.items()}


def present(loop: Loop, table: str, mode: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    """Returns the rows that the source has, as a Delta table of a mode tells them."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in loop.delta(table, order="1"):
        image = tuple(plain(row[name]) for name in columns)
        if mode == "append":
            if row["_op"] in ("insert", "update", "snapshot"):
                rows[image] += 1
            if row["_op"] in ("update", "delete"):
                before = row["_before"]
                rows[tuple(plain(before[name]) for name in columns)] -= 1
        elif not row.get("_deleted", False) and row.get("_current", True):
            rows[image] += 1
    assert all(count >= 0 for count in rows.values()), "a row was removed that was not there"
    return +rows


def selected(loop: Loop, table: str) -> tuple[list[str], Counter[tuple[Any, ...]]]:
    """Returns the columns and rows of a table at the source; none of a table that is not there."""
    db, _, name = table.rpartition(".")
    with loop.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "ORDER BY ordinal_position",
            (db or loop.db, name),
        )
        columns = [(str(column), str(kind).lower()) for column, kind in cursor.fetchall()]
        if not columns:
            return [], Counter()
        asked = ", ".join(ASKED.get(kind, "{}").format(quoted(column)) for column, kind in columns)
        cursor.execute(f"SELECT {asked} FROM {quoted(db or loop.db)}.{quoted(name)}")
        return [column for column, _ in columns], Counter(tuple(map(plain, row)) for row in cursor.fetchall())


def require_equal(loop: Loop, table: str, mode: str, added: Collection[str] = ()) -> None:
    """``added``: columns that the cases have added; older rows of a changelog have null in them."""
    columns, rows = selected(loop, table)
    kept = [place for place, name in enumerate(columns) if mode != "append" or name not in added]
    shown: Counter[tuple[Any, ...]] = Counter()
    for row, count in rows.items():
        shown[tuple(row[place] for place in kept)] += count
    assert present(loop, table, mode, [columns[place] for place in kept]) == shown, (table, mode)


# --- cases of the corpus in each mode --------------------------------------------------------------------------------


@dataclass(frozen=True)
class InMode:
    """A case of the corpus whose tables are in one mode."""

    case: Case
    mode: str
    number: int

    @property
    def names(self) -> dict[str, str]:
        """The names of the case's tables, and of those that its statements make, as they are here."""
        names = [table.name for table in self.case.tables]
        return {name: f"{name}_{self.mode}_{self.number}" for name in (*names, "moved", "alike", "old_parts")}

    def here(self, sql: str) -> str:
        words = sql.replace("(", " ( ").split(" ")
        return " ".join(self.names.get(word, word) for word in words).replace(" ( ", "(")


def _cases(kind: str, seed: int) -> list[Case]:
    cases = [
        case for case in cases_for(kind)
        if case.file == "partitions" and any(re.search("(DROP|TRUNCATE|EXCHANGE|CONVERT) .*PARTITION", s) for s in case.sql)
    ]  # fmt: skip
    return cases if SAMPLE == "all" else random.Random(seed).sample(cases, int(SAMPLE))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mariadb10", "mysql56"])
def test_each_mode_shows_the_rows_that_are_left(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Database, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    db = database(server)
    all_cases = [InMode(case, mode, n) for n, case in enumerate(_cases(kind, seed)) for mode in MODES]
    overrides = ", ".join(
        f"DB.{name}: {{mode: {variant.mode if table != 'digits' else 'append'}}}"
        for variant in all_cases
        for table, name in variant.names.items()
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"USE `{db}`")
        cursor.execute("SET time_zone = '+00:00'")
        for variant in all_cases:
            for table in variant.case.tables:
                cursor.execute(variant.here(table.create))
    loop = Loop(tmp_path, server, db, overrides=overrides, apply="on_error: park", start="now")
    loop.capture()
    for variant in all_cases:
        loop.sql("SET sql_mode = ''", *(
            f"INSERT INTO {variant.names[table.name]} VALUES ({row})"
            for table in variant.case.tables
            for row in table.rows
        ))  # fmt: skip
    for variant in all_cases:
        loop.sql(*(variant.here(sql) for sql in variant.case.sql))
    loop.capture()
    loop.apply_all()
    left_out = parked(loop)
    for variant in all_cases:
        uncertain = variant.case.tables[0].name == "digits" or any("BY KEY" in sql for sql in variant.case.sql)
        for name in variant.names.values():
            reason = left_out.get(f"{db}.{name}")
            if reason is None and selected(loop, name)[0]:
                added = re.findall(r"ADD COLUMN (\w+)", " ".join(variant.case.sql))
                require_equal(loop, name, variant.mode if variant.case.tables[0].name != "digits" else "append", added)
                assert not uncertain, "the case is followed although only the server knows the rows"
            elif reason is not None:
                assert uncertain, reason
                assert "PARTITION" in reason and "cdc snapshot" in reason


# --- kills, archives, doubts -----------------------------------------------------------------------------------------


class _KilledError(Exception):
    """A kill, as the code under test sees it."""


def apply_with_kills(loop: Loop) -> None:
    """Applies a batch, whose driver is killed before a commit, and again before the ack."""

    def kill(table: str) -> None:
        raise _KilledError

    lease = loop.fetch()
    commit.before_statement = kill
    with pytest.raises(MergeFailedError, match="_KilledError"):
        pipeline.merge(loop.config, lease)
    commit.before_statement = lambda table: None
    pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, True, pipeline.merge(loop.config, lease))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_kill_loses_nothing_and_repeats_nothing(tmp_path: Path, mysql9: Server, database: Database) -> None:
    overrides = ", ".join(f"DB.{mode}: {{mode: {mode}}}" for mode in MODES)
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides)
    loop.sql(*(CREATE.format(mode) for mode in MODES))
    for mode in MODES:
        loop.sql(ROWS.format(mode), f"UPDATE {mode} SET id = 9 WHERE id = 4")
    loop.capture()
    loop.apply_all()
    for mode in MODES:
        loop.sql(f"ALTER TABLE {mode} DROP PARTITION p0", f"INSERT INTO {mode} VALUES (5, 7, 'e')")  # now in p1
    loop.capture()
    for _ in range(8):
        apply_with_kills(loop)
    for mode in MODES:
        require_equal(loop, mode, mode)
    removed = [row for row in loop.delta("append", order="_seq, _row") if row["_op"] == "delete"]
    assert [(row["id"], row["_before"]["v"]) for row in removed] == [(1, "a"), (9, "d")]
    assert [(row["id"], row["_deleted"]) for row in loop.delta("soft_delete")] == [
        (1, True), (2, False), (3, False), (4, True), (5, False), (9, True),
    ]  # fmt: skip


@pytest.mark.timeout(1800)
def test_what_is_kept_is_not_lost_by_a_snapshot(tmp_path: Path, mysql9: Server, database: Database) -> None:
    overrides = "DB.kept: {on_drop_partition: keep}, DB.waits: {on_drop_partition: snapshot}"
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides=overrides, apply="on_error: park")
    for name in ("kept", "waits"):
        loop.sql(CREATE.format(name), ROWS.format(name))
    loop.sql(
        *(f"ALTER TABLE {name} DROP PARTITION p0" for name in ("kept", "waits")), "INSERT INTO kept VALUES (8, 8, 'n')"
    )
    loop.capture()
    loop.apply_all()
    assert [row["id"] for row in loop.delta("kept")] == [1, 2, 3, 4, 8]
    assert "on_drop_partition is snapshot" in parked(loop)[f"{loop.db}.waits"]
    with capturing(loop.config), pytest.raises(UnsupportedError, match="DROP PARTITION p0") as error:
        pipeline.snapshot(loop.config, [f"{loop.db}.kept"])
    assert "CREATE TABLE … AS SELECT" in str(error.value)
    assert [row["id"] for row in loop.delta("kept")] == [1, 2, 3, 4, 8]


LOOSE = "CREATE TABLE {} (id INT, y INT, v VARCHAR(9), PRIMARY KEY (id, y)) DEFAULT CHARSET = utf8mb4"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql9", "mariadb11", "mariadb10", "mysql56"])
def test_rows_move_between_two_tables(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Database, seed: int
) -> None:
    """Between tables in two modes; the driver is killed before each commit and before the ack."""
    server: Server = request.getfixturevalue(kind)
    converts = kind.startswith("mariadb")
    pairs = {f"p{n}": (mode, MODES[(n + seed) % 4], f"x{n}") for n, mode in enumerate(MODES)}
    modes = {name: mode for name, (mode, _, _) in pairs.items()}
    modes |= {other: mode for _, mode, other in pairs.values()}
    if converts:
        modes |= {f"c{other}": mode for _, mode, other in pairs.values()}
    overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for name, mode in modes.items())
    loop = Loop(tmp_path, server, database(server), overrides=overrides)
    for name, (_, _, other) in pairs.items():
        loop.sql(CREATE.format(name), ROWS.format(name), LOOSE.format(other))
        loop.sql(
            f"INSERT INTO {other} VALUES (2, 15, 'same key'), (7, 18, 'g'), (8, 19, 'h')",
            f"DELETE FROM {other} WHERE id = 8",
        )
        loop.sql(f"UPDATE {name} SET y = 16, v = 'moved' WHERE id = 4")
    loop.capture()
    loop.apply_all()
    for name, (_, _, other) in pairs.items():
        loop.sql(f"ALTER TABLE {name} EXCHANGE PARTITION p1 WITH TABLE {other}")
        loop.sql(f"INSERT INTO {name} VALUES (9, 10, 'i')", f"INSERT INTO {other} VALUES (7, 1, 'free')")
    loop.capture()
    for _ in range(3):
        apply_with_kills(loop)
    loop.apply_all()
    for name, mode in modes.items():
        if not name.startswith("c"):
            require_equal(loop, name, mode)
    if converts:
        for name, (_, _, other) in pairs.items():
            loop.sql(f"ALTER TABLE {name} CONVERT PARTITION p2 TO TABLE c{other}")
            loop.sql(f"INSERT INTO c{other} VALUES (30, 30, 'new')", f"DELETE FROM {other} WHERE y < 10")
        loop.capture()
        loop.apply_all()
        for name, mode in modes.items():
            require_equal(loop, name, mode)
        for name, (_, _, other) in pairs.items():
            loop.sql(f"UPDATE c{other} SET v = 'back'")
            loop.sql(f"ALTER TABLE {name} CONVERT TABLE c{other} TO PARTITION p9 VALUES LESS THAN (40)")
        loop.capture()
        loop.apply_all()
        for name, (mode, _, _) in pairs.items():
            require_equal(loop, name, mode)
    assert not parked(loop)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_rows_that_nobody_has_wait_for_a_snapshot(tmp_path: Path, mysql9: Server, database: Database) -> None:
    db = database(mysql9)
    overrides = "DB.waits: {on_drop_partition: snapshot}, DB.kept: {on_drop_partition: keep}"
    loop = Loop(tmp_path, mysql9, db, apply="on_error: park", overrides=overrides)
    loop.exclude(rf"{db}\.secret")
    for name in ("waits", "wrong", "shown", "kept"):
        loop.sql(CREATE.format(name), ROWS.format(name), LOOSE.format(f"{name}_x"))
    loop.sql(LOOSE.format("secret"), "INSERT INTO secret VALUES (5, 12, 's')", "INSERT INTO wrong_x VALUES (6, 3, 'w')")
    loop.sql("INSERT INTO kept_x VALUES (2, 15, 'x'), (20, 12, 'x')")
    loop.capture()
    loop.apply_all()
    loop.sql(
        "ALTER TABLE waits EXCHANGE PARTITION p1 WITH TABLE waits_x",
        "ALTER TABLE wrong EXCHANGE PARTITION p1 WITH TABLE wrong_x WITHOUT VALIDATION",
        "ALTER TABLE shown EXCHANGE PARTITION p1 WITH TABLE secret",
        "ALTER TABLE kept EXCHANGE PARTITION p1 WITH TABLE kept_x",
    )
    loop.capture()
    loop.apply_all()
    reasons = {name.partition(".")[2]: reason for name, reason in parked(loop).items()}
    assert reasons.keys() == {"waits", "wrong", "wrong_x", "shown"}, reasons
    assert "on_drop_partition is snapshot" in reasons["waits"]
    assert "rows of" in reasons["wrong"] and "lie outside of the partition" in reasons["wrong_x"]
    assert f"{db}.secret" in reasons["shown"] and "not captured" in reasons["shown"]
    require_equal(loop, "waits_x", "upsert")
    assert [(row["id"], row["v"]) for row in loop.delta("kept")] == [(1, "a"), (2, "x"), (3, "c"), (4, "d"), (20, "x")]
    require_equal(loop, "kept_x", "upsert")


@pytest.mark.timeout(1800)
def test_what_is_not_certain_waits_for_a_snapshot(tmp_path: Path, mysql9: Server, database: Database) -> None:
    db = database(mysql9)
    loop = Loop(
        tmp_path,
        mysql9,
        db,
        apply="on_error: park, mode: upsert",
        start="now",
        overrides="DB.bare: {mode: append}, DB.zeros: {keys: [id]}",
    )
    text = "RANGE COLUMNS (y) (PARTITION p0 VALUES LESS THAN ('k'), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
    day = "RANGE COLUMNS (y) (PARTITION p0 VALUES LESS THAN ('2024-01-01'), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
    week = "RANGE (YEARWEEK(y)) (PARTITION p0 VALUES LESS THAN (202401), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    shapes = {
        "accents": ("VARCHAR(9)", text, "'ä'", "characters whose order"),
        "zeros": ("DATE", day, "'0000-00-00'", "may be an impossible date"),
        "weeks": ("DATE", week, "'2023-01-01'", "YEARWEEK is not computed"),
        "later": ("INT", PARTS.removeprefix("PARTITION BY "), "5", "are not known"),
    }
    for name, (kind, scheme, *_) in shapes.items():
        key = "KEY (id)" if name == "zeros" else "PRIMARY KEY (id, y)"  # a key of Delta has no null
        loop.sql(f"CREATE TABLE {name} (id INT, y {kind} NOT NULL, {key}) CHARSET utf8mb4 PARTITION BY {scheme}")
    loop.sql(f"CREATE TABLE bare (id INT, y INT) {PARTS}")
    loop.capture()
    loop.sql(
        "SET sql_mode = ''", *(f"INSERT INTO {name} VALUES (1, {value})" for name, (_, _, value, _) in shapes.items())
    )
    loop.sql("INSERT INTO bare VALUES (1, 1)")
    loop.capture()
    # The text does not tell the bounds, and by the time capture asks, another statement has run.
    bounds = "(PARTITION p0 VALUES LESS THAN (CEILING(9.5)), PARTITION p1 VALUES LESS THAN MAXVALUE)"
    loop.sql(f"ALTER TABLE later PARTITION BY RANGE (y) {bounds}")
    loop.sql(*(f"ALTER TABLE {name} DROP PARTITION p0" for name in (*shapes, "bare")))
    loop.capture()
    loop.apply_all()
    reasons = parked(loop)
    for name, (*_, reason) in shapes.items():
        assert reason in reasons[f"{db}.{name}"], reasons
        assert f"ALTER TABLE {name} DROP PARTITION p0" in reasons[f"{db}.{name}"]
        assert f"cdc snapshot shop {db}.{name}" in reasons[f"{db}.{name}"]
    assert "without a key" in reasons[f"{db}.bare"]
    with capturing(loop.config):
        pipeline.snapshot(loop.config, [f"{db}.zeros"])
    loop.sql(
        "ALTER TABLE zeros REORGANIZE PARTITION p1 INTO (PARTITION p1 VALUES LESS THAN ('2025-01-01'), PARTITION p2 VALUES LESS THAN (MAXVALUE))",
        "INSERT INTO zeros VALUES (2, '2024-05-05'), (3, '2025-05-05')",
        "ALTER TABLE zeros DROP PARTITION p1",
    )
    loop.capture()
    loop.apply_all()
    require_equal(loop, "zeros", "upsert")


# --- random maintenance ----------------------------------------------------------------------------------------------


MOST_CONVERTED = 8


@pytest.mark.long
@dataclass
class Maintenance:
    """A table by RANGE whose partitions come, go, move, and get names again that others had; and tables that it
    exchanges rows with."""

    table: str
    rng: random.Random
    converts: bool
    """Whether the server has CONVERT PARTITION."""
    bounds: list[tuple[str, int]] = field(default_factory=lambda: [("a", 0), ("b", 10), ("c", 20)])
    free: list[str] = field(default_factory=lambda: ["d", "e", "f"])
    made: list[str] = field(default_factory=list)
    """The tables that partitions were converted to."""
    next_id: int = 0

    @property
    def other(self) -> str:
        """The table that partitions are exchanged with."""
        return f"{self.table}_x"

    @property
    def names(self) -> list[str]:
        """All tables that there may be."""
        return [self.table, self.other, *(f"{self.table}_c{number}" for number in range(MOST_CONVERTED))]

    @property
    def create(self) -> list[str]:
        columns = "(id INT, y INT, v INT, PRIMARY KEY (id, y))"
        parts = f"PARTITION BY RANGE (y) ({self._listed()})"
        return [f"CREATE TABLE {self.table} {columns} {parts}", f"CREATE TABLE {self.other} {columns}"]

    def _listed(self) -> str:
        return ", ".join(f"PARTITION {name} VALUES LESS THAN ({bound})" for name, bound in self.bounds)

    def steps(self) -> list[str]:
        """Returns some statements."""
        rng, table = self.rng, self.table
        statements = [self._insert(table, self.bounds[0][1] - 8, self.bounds[-1][1]) for _ in range(rng.randint(3, 9))]
        statements.append(
            f"UPDATE {table} SET y = {rng.randint(-5, self.bounds[-1][1] - 1)} WHERE id = {rng.randint(1, self.next_id)}"
        )
        statements.append(f"UPDATE {table} SET v = v + 1 WHERE id > {rng.randint(0, self.next_id)}")
        statements.append(f"DELETE FROM {table} WHERE id = {rng.randint(1, self.next_id)}")
        at = rng.randrange(len(self.bounds))
        kind = rng.choice(["drop", "drop", "truncate", "add", "split", "exchange", "exchange", "convert"])
        if kind == "convert" and (not self.converts or len(self.made) == MOST_CONVERTED):
            kind = "exchange"
        if kind == "add" or (kind in ("drop", "split", "convert") and len(self.bounds) < 3):
            new = self._name()
            self.bounds.append((new, self.bounds[-1][1] + rng.randint(3, 12)))
            return [
                *statements,
                f"ALTER TABLE {table} ADD PARTITION (PARTITION {new} VALUES LESS THAN ({self.bounds[-1][1]}))",
            ]
        if kind == "truncate":
            return [*statements, f"ALTER TABLE {table} TRUNCATE PARTITION {self.bounds[at][0].upper()}"]
        return statements + {
            "drop": self._drop,
            "split": self._split,
            "exchange": self._exchange,
            "convert": self._convert,
        }[kind](at)

    def _insert(self, table: str, low: int, high: int) -> str:
        """``high`` is excluded."""
        self.next_id += 1
        return f"INSERT INTO {table} VALUES ({self.next_id}, {self.rng.randrange(low, high)}, 0)"

    def _name(self) -> str:
        """Returns a name for a partition, perhaps of a former one."""
        new, *self.free = self.free
        if len(self.free) < 2:
            self.free += [f"g{self.next_id}", f"h{self.next_id}"]
        return new

    def _low(self, at: int) -> int:
        return self.bounds[at - 1][1] if at else self.bounds[0][1] - 8

    def _drop(self, at: int) -> list[str]:
        name, _ = self.bounds.pop(at)
        self.free.append(name)
        return [f"ALTER TABLE {self.table} DROP PARTITION {name}"]

    def _split(self, at: int) -> list[str]:
        """The name stays and means other rows."""
        (name, bound), middle = self.bounds[at], self.bounds[at][1] - 2
        if at and middle <= self.bounds[at - 1][1]:
            return []
        new = self._name()
        self.bounds[at : at + 1] = [(new, middle), (name, bound)]
        return [
            (
                f"ALTER TABLE {self.table} REORGANIZE PARTITION {name} INTO (PARTITION {new} VALUES LESS THAN ({middle}), "
                f"PARTITION {name} VALUES LESS THAN ({bound}))"
            )
        ]

    def _exchange(self, at: int) -> list[str]:
        name, bound = self.bounds[at]
        rows = [self._insert(self.other, self._low(at), bound) for _ in range(self.rng.randint(0, 3))]
        exchange = f"ALTER TABLE {self.table} EXCHANGE PARTITION {name} WITH TABLE {self.other}"
        return [f"DELETE FROM {self.other}", *rows, exchange, f"UPDATE {self.other} SET v = v + 100"]

    def _convert(self, at: int) -> list[str]:
        """Makes a table of a partition; the last partition comes back under another name."""
        made, is_last, (name, bound) = (
            f"{self.table}_c{len(self.made)}",
            at == len(self.bounds) - 1,
            self.bounds.pop(at),
        )
        self.made.append(made)
        low = self.bounds[at - 1][1] if at else bound - 8
        statements = [
            f"ALTER TABLE {self.table} CONVERT PARTITION {name} TO TABLE {made}",
            self._insert(made, low, bound),
        ]
        if not is_last:
            return statements
        new = self._name()
        self.bounds.append((new, bound))
        return [
            *statements,
            f"ALTER TABLE {self.table} CONVERT TABLE {made} TO PARTITION {new} VALUES LESS THAN ({bound})",
        ]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [("mysql9", 1), pytest.param("mariadb11", 2, marks=pytest.mark.long), *(
        pytest.param(kind, 15, marks=pytest.mark.long) for kind in ("mysql9", "mariadb11", "mariadb10", "mysql56")
    )],
)  # fmt: skip
def test_random_maintenance(
    kind: str, rounds: int, request: pytest.FixtureRequest, tmp_path: Path, database: Database, seed: int
) -> None:
    server: Server = request.getfixturevalue(kind)
    rng = random.Random(seed)
    db = database(server)
    converts = kind.startswith("mariadb")
    tables = {mode: Maintenance(mode, random.Random(f"{seed} {mode}"), converts) for mode in MODES}
    overrides = ", ".join(f"DB.{name}: {{mode: {mode}}}" for mode in MODES for name in tables[mode].names)
    loop = Loop(tmp_path, server, db, overrides=overrides, start="now")
    loop.sql(*(sql for table in tables.values() for sql in table.create))
    loop.capture()
    for _ in range(rounds):
        for table in tables.values():
            loop.sql(*table.steps())
            if rng.random() < 0.2:
                loop.capture()  # else it stays behind, and the source shows later partitions
    loop.capture()
    loop.apply_all()
    for mode, table in tables.items():
        for name in (mode, table.other, *table.made):
            if selected(loop, name)[0]:
                require_equal(loop, name, mode)
