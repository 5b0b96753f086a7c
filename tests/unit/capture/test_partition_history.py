"""Partitions at each statement of the stream: by the text, from the source where it does not tell, never from later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.binlog.positions import make_seq
from cdc.binlog.sql.partitions import read_partitions
from cdc.binlog.sql.schemas import KnownPartitions, Schemas, TableSchema
from cdc.binlog.sql.statements import classify
from cdc.capture.partition_history import PartitionHistory
from cdc.config import TablesConfig

EMPTY = TableSchema(columns=(), primary_key=())
AB = "RANGE (`y`) (PARTITION `a` VALUES LESS THAN (10), PARTITION `b` VALUES LESS THAN (20))"
B = "RANGE (`y`) (PARTITION `b` VALUES LESS THAN (20))"
LATER = "RANGE (`y`) (PARTITION `b` VALUES LESS THAN (99))"


class Source:
    """A server whose tables and position are set by hand."""

    def __init__(self, tables: Mapping[str, str], seq: int) -> None:
        self.tables, self.seq, self.asked = dict(tables), seq, 0

    def read(self, wanted: Sequence[str] | None) -> tuple[dict[str, str], int]:
        self.asked += 1
        return {n: clause for n, clause in self.tables.items() if wanted is None or n in wanted}, self.seq


def seq(number: int, epoch: int = 0) -> int:
    return make_seq(epoch, 1, number)


def history(source: Source, begin: int = 100, stored: Schemas | None = None) -> PartitionHistory:
    history = PartitionHistory(TablesConfig(include=(r"s\..*",)), source.read)
    history.begin(seq(begin), stored)
    return history


def run(partitions: PartitionHistory, at: int, sql: str) -> bool:
    return partitions.follow(seq(at), classify(sql, "s").changes)


def test_a_drop_is_recorded_with_the_definition_before_it() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.tables, source.seq = {"s.t": LATER}, seq(900)  # far ahead
    assert run(partitions, 200, "ALTER TABLE t ADD PARTITION (PARTITION c VALUES LESS THAN (30))")
    assert run(partitions, 300, "ALTER TABLE t DROP PARTITION B")
    clause = partitions.dropped[seq(300)]["s.t"]
    assert clause == AB
    assert run(partitions, 400, "ALTER TABLE t TRUNCATE PARTITION c")
    assert partitions.dropped[seq(400)]["s.t"] == (
        "RANGE (`y`) (PARTITION `a` VALUES LESS THAN (10), PARTITION `c` VALUES LESS THAN (30))"
    )
    assert partitions.definitions["s.t"].until == 0
    assert not run(partitions, 500, "ALTER TABLE t ADD COLUMN z INT")
    saved = partitions.into(Schemas(tables={"s.t": EMPTY}))
    assert saved.dropped_partitions == partitions.dropped
    assert Schemas.model_validate_json(saved.model_dump_json()) == saved


def test_a_partition_that_moves_is_recorded_with_the_definition_before_it() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    assert run(partitions, 200, "ALTER TABLE t EXCHANGE PARTITION a WITH TABLE b")
    assert partitions.dropped[seq(200)] == {"s.t": "RANGE (`y`) (PARTITION `a` VALUES LESS THAN (10))"}
    assert partitions.definitions["s.t"].clause == AB
    source.tables, source.seq = {"s.t": B}, seq(300)
    assert run(partitions, 300, "ALTER TABLE t CONVERT PARTITION a TO TABLE b")
    assert partitions.dropped[seq(300)] == {"s.t": "RANGE (`y`) (PARTITION `a` VALUES LESS THAN (10))"}
    assert partitions.definitions.keys() == {"s.t"} and partitions.definitions["s.t"].clause == B
    source.tables, source.seq = {"s.t": AB}, seq(500)
    assert run(partitions, 400, "ALTER TABLE t CONVERT TABLE b TO PARTITION c VALUES LESS THAN (30)")
    clause = "RANGE (`y`) (PARTITION `b` VALUES LESS THAN (20), PARTITION `c` VALUES LESS THAN (30))"
    assert partitions.definitions["s.t"].clause == clause and seq(400) not in partitions.dropped


def test_a_definition_that_was_read_ahead_counts_only_behind_that_position() -> None:
    source = Source({"s.t": AB}, seq(250))
    partitions = history(source)
    assert partitions.definitions["s.t"] == KnownPartitions(clause=AB, until=seq(250))
    source.tables, source.seq = {"s.t": B}, seq(260)
    assert run(partitions, 200, "ALTER TABLE t DROP PARTITION a")  # perhaps it was read before, perhaps behind this one
    assert partitions.dropped == {}
    assert partitions.definitions["s.t"] == KnownPartitions(clause=B, until=seq(260))
    run(partitions, 250, "ALTER TABLE t DROP PARTITION b")
    assert partitions.dropped == {}
    source.tables, source.seq = {"s.t": AB}, seq(250)
    run(
        partitions,
        250,
        "ALTER TABLE t PARTITION BY RANGE (y) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
    )
    run(partitions, 300, "ALTER TABLE t DROP PARTITION a")
    assert partitions.dropped == {seq(300): {"s.t": read_text(AB, "a")}}


def test_what_was_read_ahead_of_a_rename_is_of_the_later_table() -> None:
    source = Source({"s.t": LATER, "s.old": AB}, seq(250))  # as it is after the exchange
    partitions = history(source)
    run(partitions, 200, "RENAME TABLE t TO old, new TO t")
    assert partitions.definitions["s.old"] == KnownPartitions(clause=AB, until=seq(250))
    run(partitions, 300, "ALTER TABLE old DROP PARTITION a")
    assert partitions.dropped == {seq(300): {"s.old": read_text(AB, "a")}}


def read_text(clause: str, name: str) -> str:
    partitions = read_partitions(clause)
    assert partitions is not None
    return partitions.reduced([name]).to_text()


def test_a_change_without_a_statement_is_noticed_where_the_source_stands_behind_the_statement() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.tables, source.seq = {"s.t": LATER}, seq(200)  # sql_log_bin = 0: b has become larger
    run(partitions, 200, "ALTER TABLE t DROP PARTITION a")
    assert partitions.dropped == {seq(200): {}}
    assert partitions.definitions["s.t"].clause == LATER


def test_statements_whose_text_does_not_tell_ask_the_source() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.tables, source.seq = {"s.t": B, "s.u": AB, "s.v": AB}, seq(900)
    run(
        partitions,
        200,
        "ALTER TABLE t PARTITION BY RANGE (UNIX_TIMESTAMP(ts)) (PARTITION b VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01')))",
    )
    assert partitions.definitions["s.t"] == KnownPartitions(clause=B, until=seq(900))
    run(partitions, 300, "CREATE TABLE IF NOT EXISTS u (y INT) PARTITION BY HASH (y)")
    assert partitions.definitions["s.u"] == KnownPartitions(clause=AB, until=seq(900))
    run(partitions, 400, "ALTER TABLE u CHANGE y z INT")
    assert partitions.definitions["s.u"].until == seq(900)
    run(partitions, 950, "CREATE TABLE w LIKE u")  # what is exact now is copied
    assert partitions.definitions["s.w"].clause == AB
    run(partitions, 960, "RENAME TABLE w TO x, u TO other.u")
    assert (
        "s.w" not in partitions.definitions
        and "s.u" not in partitions.definitions
        and partitions.definitions["s.x"].clause == AB
    )
    run(partitions, 970, "DROP TABLE x")
    assert "s.x" not in partitions.definitions
    run(partitions, 980, "ALTER TABLE t EXCHANGE PARTITION b WITH TABLE y")
    assert partitions.definitions["s.t"].clause == B
    run(partitions, 990, "DROP DATABASE s")
    assert partitions.definitions == {}


def test_columns_are_renamed_in_the_definition() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.tables, source.seq = {"s.t": LATER, "s.u": LATER}, seq(900)  # far ahead
    run(partitions, 200, "ALTER TABLE t CHANGE Y z BIGINT, RENAME COLUMN other TO y")
    run(partitions, 300, "ALTER TABLE t DROP PARTITION a")
    assert partitions.dropped[seq(300)]["s.t"] == "RANGE (`z`) (PARTITION `a` VALUES LESS THAN (10))"
    run(partitions, 400, "ALTER TABLE t RENAME COLUMN z TO y, RENAME COLUMN y TO z")
    assert partitions.definitions["s.t"].clause == B
    run(partitions, 500, "ALTER TABLE t RENAME TO u, CHANGE y x INT")
    assert partitions.definitions["s.u"].clause == B.replace("`y`", "`x`")
    assert source.asked == 2, "once at the beginning, once after the partition was dropped"
    run(partitions, 600, "ALTER TABLE u DROP COLUMN v")
    assert partitions.definitions["s.u"] == KnownPartitions(clause=LATER, until=seq(900))
    run(partitions, 700, "ALTER TABLE u CHANGE y w INT")  # the definition from the source has the later name already
    assert partitions.definitions["s.u"].clause == LATER


def test_a_new_table_is_known_by_its_text() -> None:
    source = Source({}, seq(100))
    partitions = history(source)
    source.seq = seq(900)
    asked = source.asked
    assert run(
        partitions,
        200,
        "CREATE TABLE t (y INT) PARTITION BY RANGE (y) (PARTITION a VALUES LESS THAN (10), PARTITION b VALUES LESS THAN (20))",
    )
    assert partitions.definitions["s.t"] == KnownPartitions(clause=AB) and source.asked == asked
    assert not run(partitions, 300, "CREATE TABLE other.t (y INT) PARTITION BY HASH (y)")
    run(partitions, 400, "ALTER TABLE t REMOVE PARTITIONING")
    assert "s.t" not in partitions.definitions
    run(partitions, 500, "ALTER TABLE t DROP PARTITION a")  # nobody knows it: no entry
    assert partitions.dropped == {}


def test_the_next_connection_goes_on_with_the_file() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.seq = seq(900)
    run(partitions, 200, "ALTER TABLE t DROP PARTITION a")
    saved = partitions.into(Schemas(tables={"s.t": EMPTY, "s.x": EMPTY}))
    source.tables = {"s.t": LATER, "s.n": AB}
    reopened = history(source, 250, saved)
    assert reopened.definitions["s.t"] == KnownPartitions(clause=B)
    assert reopened.definitions["s.n"] == KnownPartitions(clause=AB, until=seq(900))
    assert reopened.dropped == partitions.dropped
    at_rest = history(source, 900, saved)
    assert at_rest.definitions["s.t"] == KnownPartitions(clause=LATER)  # the source stands here, and shows this
    unsure = saved.model_copy(update={"partitions": {"s.t": KnownPartitions(clause=B, until=seq(700))}})
    failed_over = PartitionHistory(TablesConfig(include=(r"s\..*",)), lambda _: ({}, seq(9, epoch=1)))
    failed_over.begin(seq(5, epoch=1), unsure)
    assert failed_over.definitions["s.t"].until == seq(9, epoch=1)


def test_old_statements_are_forgotten() -> None:
    source = Source({"s.t": AB}, seq(100))
    partitions = history(source)
    source.seq = seq(9000)
    for at in range(200, 240):
        run(partitions, at, "ALTER TABLE t TRUNCATE PARTITION a")
    assert sorted(partitions.dropped) == [seq(at) for at in range(224, 240)]
