"""Batches: consecutive DDL statements that leave rows alone make one, any other DDL statement is one of its own; a
subscriber with a filter gets every transaction of a matching table, and its filter does not hold the store back."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdc.base.errors import UsageError
from cdc.binlog.entry import ENTRY, EntryFlag, format_gtid
from cdc.binlog.events import QueryEvent
from cdc.binlog.framer import Decision
from cdc.binlog.sql.statements import classify
from cdc.decode import decode_range, layouts
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.formats.state import TableNumbers
from cdc.store.reader import batch_builder
from cdc.store.reader.batch_builder import DdlTraits, Limits, Selection, TableFilter, join_filters
from cdc.store.reader.reader import StoreReader
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_retention import fill, last_seqs

CREATE = "CREATE TABLE t{} (id INT PRIMARY KEY)"


def batches(folder: Path, log: BinlogBuilder, limits: Limits, segment_bytes: int = 1 << 30) -> list[tuple[int, bool]]:
    """Returns each batch's number of transactions, and whether they are DDL, for a store with these transactions."""
    filler = Filler(folder, segment_bytes=segment_bytes)
    filler.put(log)
    filler.close()
    reader, seq, sizes = StoreReader(folder), 0, []
    while (selection := reader.select(seq, limits)) is not None:
        sizes.append((selection.transactions, selection.ddl))
        seq = selection.last_seq
    return sizes


def rows(log: BinlogBuilder, count: int = 1) -> None:
    for n in range(count):
        log.transaction("shop", "orders", [n])


@pytest.mark.parametrize("segment_bytes", [1 << 30, 2000])
def test_a_run_of_harmless_statements_is_one_batch(tmp_path: Path, segment_bytes: int) -> None:
    log = BinlogBuilder()
    for n in range(97):
        log.ddl(CREATE.format(n))
    rows(log, 217)
    log.ddl("ALTER TABLE t1 COMMENT = 'a'")
    log.ddl("CREATE INDEX i ON t1 (id)")
    rows(log)
    assert batches(tmp_path, log, Limits(), segment_bytes) == [(97, True), (217, False), (2, True), (1, False)]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t1 ADD COLUMN x INT",
        "DROP TABLE t1",
        "TRUNCATE TABLE t1",
        "CREATE TABLE t3 AS SELECT * FROM t1",
        "CREATE OR REPLACE TABLE t1 (id INT)",
        "RENAME TABLE t1 TO t2",
        f"CREATE TABLE t3 (id INT) COMMENT = '{'long' * (1 << 18)}'",
    ],
)
def test_a_statement_with_an_effect_comes_alone(tmp_path: Path, statement: str) -> None:
    log = BinlogBuilder()
    for sql in (CREATE.format(1), CREATE.format(2), statement, CREATE.format(4), CREATE.format(5)):
        log.ddl(sql)
    rows(log)
    assert batches(tmp_path, log, Limits()) == [(2, True), (1, True), (2, True), (1, False)]


def test_rows_inside_a_statements_transaction_end_the_run(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.ddl(CREATE.format(1))
    log.ddl(CREATE.format(2))
    rows(log)
    log.ddl(CREATE.format(3))
    assert batches(tmp_path, log, Limits()) == [(2, True), (1, False), (1, True)]


def test_limits_hold_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    for n in range(10):
        log.ddl(CREATE.format(n))
    rows(log)
    limits = Limits(max_transactions=4)
    assert batches(tmp_path / "limited", log, limits) == [(4, True), (4, True), (2, True), (1, False)]
    monkeypatch.setattr(batch_builder, "_MOST_DDL", 7)
    assert batches(tmp_path / "capped", log, Limits()) == [(7, True), (3, True), (1, False)]


def test_a_selection_reads_no_more_statements_than_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    for n in range(50):
        log.ddl(CREATE.format(n))
    rows(log)
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    asked: list[int] = []

    def ask(segment: Path, entry: Any) -> DdlTraits:
        asked.append(int(entry["seq"]))
        return DdlTraits(leaves_rows_alone=True)

    monkeypatch.setattr("cdc.store.reader.reader.ddl_traits", ask)
    selection = StoreReader(tmp_path).select(0, Limits(max_transactions=5))
    assert selection is not None and selection.transactions == 5
    assert len(asked) <= 6


# --- statements and rows in one batch


MIXES = Limits(mixes=True)
A, B, C, D = "CREATE TABLE a (id INT)", "CREATE TABLE b (id INT)", "ALTER TABLE c ADD x INT", "ALTER TABLE d DROP y"


class NamingFiller(Filler):
    """Sets the bits of the tables that a statement names, as capture does."""

    def statement(self, query: QueryEvent, in_transaction: bool) -> Decision:
        named = classify(query.sql, query.db).tables
        numbers = [self.table(database, table) or 0 for database, table in named]
        return Decision(True, ddl=True, table_mask=sum({1 << (number & 63) for number in numbers}))


def mixtures(folder: Path, *steps: str, limits: Limits = MIXES) -> list[str]:
    """Returns the batches of a history: each as its steps, and with a plus if it is mixed. A step is a statement, or
    the name of a table that gets a row."""
    log = BinlogBuilder()
    for n, step in enumerate(steps):
        if " " in step:
            log.ddl(step)
        else:
            log.transaction("shop", step, [n])
    filler = NamingFiller(folder)
    filler.put(log)
    filler.close()
    reader, seq, texts, at = StoreReader(folder), 0, [], 0
    while (selection := reader.select(seq, limits)) is not None:
        taken = steps[at : at + selection.transactions]
        assert selection.ddl is any(" " in step for step in taken)
        texts.append(("+ " if selection.mixed else "") + ", ".join(taken))
        seq, at = selection.last_seq, at + selection.transactions
    return texts


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ((A, "a", B, "b", "a", "z", C, "c", D, "d", "c"), [11]),  # every table has its rows behind its statement
        (("a", "c", C, "c"), [2, 2]),  # rows before and behind
        ((C, "c", "ALTER TABLE c ADD z INT", "c"), [2, 2]),
        ((C, "ALTER TABLE c ADD z INT"), [1, 1]),
        ((A, A, "a"), [3]),  # a run, as before, and then rows
        ((A, "a", A), [2, 1]),
        ((A, "a", "CREATE INDEX i ON a (id)", "a"), [4]),
        (("z", "RENAME TABLE a TO b", "z", B), [1, 1, 2]),
        (("z", "DROP TABLE a", "DROP TABLE b"), [1, 1, 1]),
        (("z", "TRUNCATE TABLE a", "a", "b"), [4]),
        (("z", "CREATE TABLE a LIKE b", "z"), [1, 1, 1]),
        ((A, "CREATE TABLE b LIKE a", "z"), [2, 1]),  # two new tables are a run, and rows may not follow the copy
        (("z", "CREATE TABLE a AS SELECT * FROM b", "z"), [1, 1, 1]),
        (("z", "CREATE OR REPLACE TABLE a (id INT)", "z"), [1, 1, 1]),
        (("z", "CREATE TABLE a (id INT, FOREIGN KEY (id) REFERENCES b (id))", "z"), [1, 1, 1]),
        (("z", "ALTER TABLE c DROP CONSTRAINT k", "z"), [1, 1, 1]),
        (("z", "ALTER TABLE a EXCHANGE PARTITION p WITH TABLE b", "z"), [1, 1, 1]),
        (("z", "ALTER TABLE a DROP PARTITION p", "z"), [1, 1, 1]),
        (("z", "CREATE DATABASE other", "z", "ALTER TABLE c COMMENT 'c'", "c"), [5]),
    ],
)
def test_a_mixture_ends_where_a_table_would_need_two_commits(
    tmp_path: Path, steps: tuple[str, ...], ends: list[int]
) -> None:
    starts = [sum(ends[:n]) for n in range(len(ends) + 1)]
    wanted = [", ".join(steps[first:last]) for first, last in itertools.pairwise(starts)]
    assert [batch.removeprefix("+ ") for batch in mixtures(tmp_path, *steps)] == wanted


def test_only_what_no_run_could_have_is_mixed(tmp_path: Path) -> None:
    assert mixtures(tmp_path / "rows", "a", "b") == ["a, b"]
    assert mixtures(tmp_path / "run", A, B) == [f"{A}, {B}"]
    assert mixtures(tmp_path / "one", C) == [C]
    assert mixtures(tmp_path / "two", C, D) == [f"+ {C}, {D}"]
    assert mixtures(tmp_path / "both", A, "z") == [f"+ {A}, z"]
    assert mixtures(tmp_path / "without", "a", C, D, "z", limits=Limits()) == ["a", C, D, "z"]


def test_tables_that_share_a_bit_count_as_one(tmp_path: Path) -> None:
    steps = [step for n in range(130) for step in (CREATE.format(n), f"t{n}")]
    assert [batch.count("CREATE") for batch in mixtures(tmp_path, *steps)] == [64, 64, 2]


def test_random_mixtures_keep_their_rule(tmp_path: Path) -> None:
    """Each batch is the longest one in which no table has rows before its statement, nor two statements."""
    rng = random.Random(SEED)
    for case in range(12):
        tables = [f"t{n}" for n in range(rng.randint(1, 5))]
        steps = [
            rng.choice(tables) if rng.random() < 0.6 else f"ALTER TABLE {rng.choice(tables)} ADD c{n} INT"
            for n in range(rng.randint(1, 40))
        ]
        wanted: list[list[str]] = []
        seen: set[str] = set()
        for step in steps:
            is_statement = " " in step
            table = step.split()[2] if is_statement else step
            if not wanted or (is_statement and table in seen):
                wanted.append([])
                seen = set()
            wanted[-1].append(step)
            seen.add(table)
        batches = mixtures(tmp_path / str(case), *steps)
        assert [batch.removeprefix("+ ") for batch in batches] == [", ".join(batch) for batch in wanted]


def test_what_leaves_rows_alone() -> None:
    for sql, expected in {
        CREATE.format(1): True,
        "CREATE TABLE a LIKE b": True,
        "ALTER TABLE a ADD INDEX (id)": True,
        "CREATE VIEW v AS SELECT 1": True,
        "CREATE DATABASE d": True,
        "DROP DATABASE d": False,
        "ALTER TABLE a ADD COLUMN b INT": False,
        "INSERT INTO a VALUES (1)": False,
        "nonsense": False,
    }.items():
        assert classify(sql, "shop").leaves_rows_alone is expected, sql


SEED = 77


def build(path: Path, plan: list[list[str]], *, segment_bytes: int = 1 << 30) -> list[int]:
    """Makes a store with a transaction for each list of tables. Returns the seqs."""
    log = BinlogBuilder()
    for n, tables in enumerate(plan):
        log.gtid()
        log.query("BEGIN")
        for table in tables:
            log.table_map("shop", table)
            log.rows("shop", table, [n])
        log.xid()
    filler = Filler(path, segment_bytes=segment_bytes)
    filler.put(log)
    filler.close()
    return [int(seq) for segment in list_segments(path) for seq in IndexFile(segment).entries["seq"]]


def rows_of(selection: Selection, table: str) -> list[int]:
    ids: list[int] = []
    for path, offset, length in selection.ranges:
        for batch in decode_range(path, offset, length, table=table):
            ids += batch.column("id").to_pylist()
    return ids


def everything(reader: StoreReader, table_filter: TableFilter, limits: Limits) -> list[Selection]:
    after, selections = 0, []
    while (selection := reader.select(after, limits, table_filter)) is not None:
        assert selection.first_seq > after
        after = selection.last_seq
        selections.append(selection)
    return selections


@pytest.mark.rule("canal-server-11")
def test_only_matching_transactions_are_selected(tmp_path: Path) -> None:
    plan = [["orders"], ["items"], ["items", "orders"], ["log"], ["items"], ["orders"]]
    seqs = build(tmp_path, plan)
    reader = StoreReader(tmp_path)
    selection = reader.select(0, Limits(), TableFilter(r"shop\.orders"))
    assert selection is not None
    assert (selection.transactions, selection.row_events, selection.tables) == (3, 4, ("shop.orders",))
    assert (selection.first_seq, selection.last_seq) == (seqs[0], seqs[5])
    assert rows_of(selection, "shop.orders") == [0, 2, 5]
    assert set(layouts(selection.ranges, selection.tables)) == {"shop.orders"}
    selection = reader.select(seqs[2], Limits(), TableFilter(r"shop\.(log|none)"))
    assert selection is not None and (selection.transactions, selection.first_seq, selection.last_seq) == (
        1,
        seqs[3],
        seqs[5],
    )
    assert reader.select(0, Limits(), TableFilter("shop")) is None, "matched whole"
    assert reader.select(0, Limits(), TableFilter(r"(?i:SHOP)\..*")) == reader.select(0, Limits())


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(max_transactions=1), Limits(max_transactions=7), Limits(max_bytes=900)]
)
@pytest.mark.parametrize("count", [3, 64, 150])
def test_batches_cover_matching_transactions_once(tmp_path: Path, count: int, limits: Limits) -> None:
    """Compared with a model, with up to 64 tables (exact) and more (a bit stands for several)."""
    chance = random.Random(SEED)
    plan = [[f"t{chance.randrange(count)}" for _ in range(chance.randint(1, 3))] for _ in range(300)]
    plan = [list(dict.fromkeys(tables)) for tables in plan]
    seqs = build(tmp_path, plan, segment_bytes=65536)
    reader = StoreReader(tmp_path)
    table_filter = TableFilter(r"shop\.t[12]")
    selections = everything(reader, table_filter, limits)
    for table in ("t1", "t2"):
        rows = [
            row
            for selection in selections
            if f"shop.{table}" in selection.tables
            for row in rows_of(selection, f"shop.{table}")
        ]
        assert rows == [n for n, tables in enumerate(plan) if table in tables]
    assert all(table_filter.matches(table) for selection in selections for table in selection.tables)
    must = [n for n, tables in enumerate(plan) if {"t1", "t2"} & set(tables)]
    if count <= 64:
        assert sum(selection.transactions for selection in selections) == len(must)
        assert selections[0].first_seq == seqs[must[0]]
    else:
        names = TableNumbers(tmp_path).names
        bits = {names.index(f"shop.t{n}") & 63 for n in (1, 2)}
        may = [n for n, tables in enumerate(plan) if bits & {names.index(f"shop.{t}") & 63 for t in tables}]
        assert sum(selection.transactions for selection in selections) == len(may) > len(must)


def test_ranges_span_small_gaps_only(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for values in ([1], [2], [3] * 5000, [4]):
        log.transaction("shop", "orders" if len(values) == 1 and values != [2] else "items", values)
    log.transaction("shop", "orders", [5])
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    selection = StoreReader(tmp_path).select(0, Limits(), TableFilter(r"shop\.orders"))
    assert selection is not None and selection.transactions == 3
    entries = read_entries(list_segments(tmp_path)[0])
    first, second = selection.ranges
    assert (first.offset, first.length) == (int(entries["offset"][0]), int(entries["length"][0]))
    assert second.offset == int(entries["offset"][3])
    assert rows_of(selection, "shop.orders") == [1, 4, 5]
    assert selection.bytes == first.length + second.length


def test_a_ddl_of_another_table_is_not_selected_and_no_range_spans_it(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "items", [0])  # number 0, which the filler gives to every DDL
    log.transaction("shop", "orders", [1])
    log.ddl("ALTER TABLE items ADD x INT")
    log.transaction("shop", "orders", [2])
    filler = Filler(tmp_path)
    filler.put(log)
    filler.close()
    reader = StoreReader(tmp_path)
    selection = reader.select(0, Limits(), TableFilter(r"shop\.orders"))
    assert selection is not None and (selection.transactions, selection.ddl, len(selection.ranges)) == (2, False, 2)
    mine = everything(reader, TableFilter(r"shop\.items"), Limits())
    assert [(selection.transactions, selection.ddl) for selection in mine] == [(1, False), (1, True)]


def test_a_ddl_that_names_no_table_passes_every_filter(tmp_path: Path) -> None:
    build(tmp_path, [["orders"]])
    entries = np.array(IndexFile(list_segments(tmp_path)[0]).entries)
    entries["flags"], entries["table_mask"] = int(EntryFlag.DDL), 0
    assert TableFilter("nothing").wanted(entries, ["shop.orders"]).tolist() == [True]


def test_a_gtid_of_mariadb_stays_one_where_the_last_transaction_does_not_pass() -> None:
    entries = np.zeros(2, dtype=ENTRY)
    entries["seq"], entries["length"], entries["offset"] = [11, 12], [70, 80], [100, 170]
    entries["flags"], entries["gtid_count"], entries["gtid_number"] = int(EntryFlag.GTID_MARIADB), 1, [41, 42]
    entries["gtid_source"] = np.void(struct.pack("<II8x", 3, 7))
    builder = batch_builder.BatchBuilder(Limits())
    builder.add(Path("segment"), entries, np.array([True, False]))
    assert builder.first is not None and builder.last is not None and builder.transactions == 1
    assert (format_gtid(builder.first), format_gtid(builder.last)) == ("3-7-41", "3-7-42")


def test_a_cursor_skips_what_does_not_match_up_to_the_next_that_does(tmp_path: Path) -> None:
    fill(tmp_path, 60, tables=("items",))
    ends = last_seqs(tmp_path)
    reader = StoreReader(tmp_path)
    none, some = TableFilter(r"shop\.orders"), TableFilter(r"shop\.items")
    assert [reader.skippable_until(seq, none) for seq in (0, ends[1], ends[-1])] == [ends[-1]] * 3
    assert [reader.skippable_until(seq, kind) for seq in (0, ends[0]) for kind in (some, None)] == [0, 0] + [
        ends[0]
    ] * 2


def test_the_backlog_of_a_filtered_subscriber_has_what_it_gets(tmp_path: Path) -> None:
    build(tmp_path, [["items"], ["orders", "items"], ["items"], ["orders"], ["items"]])
    reader = StoreReader(tmp_path)
    orders = TableFilter(r"shop\.orders")
    entries = np.concatenate(list(reader.all_entries()))
    assert len(entries) == 5
    behind = reader.backlog(0, orders)
    assert (behind.transactions, behind.bytes) == (2, int(entries["length"][1] + entries["length"][3]))
    assert behind.oldest_commit_time_us == entries["commit_time_us"][1]
    assert reader.skippable_until(0, orders) == entries["seq"][0]
    assert reader.skippable_until(int(entries["seq"][1]), orders) == entries["seq"][2]
    last = int(entries["seq"][3])
    assert reader.backlog(last, orders).transactions == 0 and reader.backlog(last).transactions == 1
    assert reader.skippable_until(last, orders) == entries["seq"][4]


@pytest.mark.rule("canal-server-12")
def test_joined_filters() -> None:
    assert join_filters([]) is None
    assert join_filters([r"a\.b"]) == r"a\.b"
    joined = join_filters([r"a\.b|c\.d", r"e\..*"])
    assert joined is not None
    table_filter = TableFilter(joined)
    assert [table_filter.matches(name) for name in ("a.b", "c.d", "e.f", "a.bc")] == [True, True, True, False]


@pytest.mark.parametrize("pattern", ["(", "[a", "*"])
def test_an_invalid_filter_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="is not a regular expression"):
        TableFilter(pattern)
