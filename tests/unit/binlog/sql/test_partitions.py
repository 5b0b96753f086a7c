"""Partitions from statements and from SHOW CREATE TABLE: one form for all spellings, and what statements make of it."""

from __future__ import annotations

import pytest

from cdc.binlog.sql.changes import ChangePartitions, CreateTable, DropPartitions, MovePartition
from cdc.binlog.sql.partitions import (
    Partition,
    Partitions,
    coalesced,
    columns_of,
    read_partitions,
    reorganized,
    shown_partitions,
    with_added,
)
from cdc.binlog.sql.statements import classify

DAYS = "RANGE (to_days(`d`)) (PARTITION `a` VALUES LESS THAN (739251), PARTITION `b` VALUES LESS THAN (MAXVALUE))"
RANGE = (
    "RANGE (`y`) (PARTITION `a` VALUES LESS THAN (10), PARTITION `b` VALUES LESS THAN (20), "
    "PARTITION `c` VALUES LESS THAN (MAXVALUE))"
)


def made(clause: str) -> Partitions | None:
    changes = classify(f"CREATE TABLE t (y INT, d DATE, c CHAR(9)) ENGINE=InnoDB PARTITION BY {clause}", "s").changes
    (create,) = [change for change in changes if isinstance(change, CreateTable)]
    return create.partitions


def parsed(text: str) -> Partitions:
    partitions = read_partitions(text)
    assert partitions is not None
    return partitions


@pytest.mark.parametrize(
    ("clause", "text"),
    [
        ("RANGE (TO_DAYS(d)) (PARTITION a VALUES LESS THAN (TO_DAYS('2024-01-01')), PARTITION b VALUES LESS THAN MAXVALUE)", DAYS),
        ("RANGE (to_days(`d`)) (PARTITION a VALUES LESS THAN (739251) ENGINE = InnoDB COMMENT = 'x', PARTITION b VALUES LESS THAN (MAXVALUE))", DAYS),
        ("RANGE (year(d)) (PARTITION a VALUES LESS THAN (YEAR('2024-05-05') + 1))",
         "RANGE (year(`d`)) (PARTITION `a` VALUES LESS THAN (2025))"),
        ("LIST (y MOD 3 - -1) (PARTITION a VALUES IN (1, NULL), PARTITION b VALUES IN (-2, 2+3))",
         "LIST (((`y` % 3) - -1)) (PARTITION `a` VALUES IN (1, NULL), PARTITION `b` VALUES IN (-2, 5))"),
        ("LIST (MOD(y, 3)) (PARTITION a VALUES IN (1), PARTITION b DEFAULT)",
         "LIST ((`y` % 3)) (PARTITION `a` VALUES IN (1), PARTITION `b` DEFAULT)"),
        ("RANGE COLUMNS(d, y) (PARTITION a VALUES LESS THAN ('2024-01-01', MAXVALUE))",
         "RANGE COLUMNS (`d`, `y`) (PARTITION `a` VALUES LESS THAN ('2024-01-01', MAXVALUE))"),
        ("LIST  COLUMNS(y,c) (PARTITION a VALUES IN ((1,'it''s'),(NULL,'b')))",
         "LIST COLUMNS (`y`, `c`) (PARTITION `a` VALUES IN ((1, 'it''s'), (NULL, 'b')))"),
        ("HASH (y + 1)", "HASH ((`y` + 1)) (PARTITION `p0`)"),
        ("LINEAR HASH (y) PARTITIONS 2", "LINEAR HASH (`y`) (PARTITION `p0`, PARTITION `p1`)"),
        ("RANGE (y) SUBPARTITION BY HASH (y) SUBPARTITIONS 2 (PARTITION a VALUES LESS THAN (5))",
         "RANGE (`y`) SUBPARTITION BY HASH (`y`) SUBPARTITIONS 2 (PARTITION `a` VALUES LESS THAN (5))"),
        ("RANGE (y) SUBPARTITION BY KEY (y) (PARTITION a VALUES LESS THAN (5) (SUBPARTITION x, SUBPARTITION z ENGINE = InnoDB))",
         "RANGE (`y`) SUBPARTITION BY KEY () SUBPARTITIONS 2 (PARTITION `a` VALUES LESS THAN (5) (SUBPARTITION `x`, SUBPARTITION `z`))"),
    ],
)  # fmt: skip
def test_one_form_for_all_spellings(clause: str, text: str) -> None:
    definition = made(clause)
    assert definition is not None
    assert definition.to_text() == text
    assert read_partitions(text) == definition
    assert shown_partitions(f"CREATE TABLE `t` (\n  `y` int\n) /*!50100 PARTITION BY {clause} */") == text


@pytest.mark.parametrize(
    "clause",
    [
        "KEY (y) PARTITIONS 2", "RANGE (y) (PARTITION a VALUES LESS THAN (UNIX_TIMESTAMP('2024-01-01')))",
        "LIST (y) (PARTITION a VALUES IN (1, f(2)))", "RANGE (y)",
        "RANGE COLUMNS (y, d) (PARTITION a VALUES LESS THAN (1))", "SYSTEM_TIME INTERVAL 1 DAY (PARTITION p0 HISTORY)",
        "RANGE (y) (PARTITION a VALUES LESS THAN (TO_DAYS('2024-13-01')))", "RANGE (y | 1) (PARTITION a VALUES LESS THAN (1))",
        "LIST COLUMNS (c) (PARTITION a VALUES IN (x'41'))", "RANGE (1.5 * y) (PARTITION a VALUES LESS THAN (1))",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_unknown(clause: str) -> None:
    assert made(clause) is None
    assert shown_partitions(f"CREATE TABLE t (y INT) PARTITION BY {clause}") is None


def test_a_table_without_partitions_has_none() -> None:
    assert (
        shown_partitions("CREATE TABLE `t` (\n  `c` int COMMENT 'PARTITION BY HASH (c)'\n) COMMENT='PARTITION BY'")
        is None
    )


def _change(clause: str) -> ChangePartitions:
    (change,) = classify(f"ALTER TABLE t {clause}", "s").changes
    assert isinstance(change, ChangePartitions)
    return change


def test_statements_change_the_definition() -> None:
    days = parsed(DAYS.replace(", PARTITION `b` VALUES LESS THAN (MAXVALUE)", ""))
    added = _change("ADD PARTITION (PARTITION b VALUES LESS THAN MAXVALUE)")
    assert with_added(days, added.listed, added.count) == parsed(DAYS)
    assert with_added(parsed(DAYS), added.listed, added.count) is None  # there is one of that name
    hashed = parsed("HASH (`y`) (PARTITION `p0`)")
    more = _change("ADD PARTITION PARTITIONS 2")
    assert with_added(hashed, more.listed, more.count) == made("HASH (y) PARTITIONS 3")
    assert (
        coalesced(parsed("HASH (`y`) (PARTITION `p0`, PARTITION `p1`)"), _change("COALESCE PARTITION 1").count)
        == hashed
    )
    assert coalesced(hashed, 1) is None
    split = _change(
        "REORGANIZE PARTITION B INTO (PARTITION b1 VALUES LESS THAN (15), PARTITION b2 VALUES LESS THAN (20))"
    )
    definition = reorganized(parsed(RANGE), split.names, split.listed)
    assert definition is not None
    assert [(partition.name, partition.values) for partition in definition.partitions] == [
        ("a", (("10",),)), ("b1", (("15",),)), ("b2", (("20",),)), ("c", (("MAXVALUE",),)),
    ]  # fmt: skip
    assert reorganized(parsed(RANGE), ("a", "c"), split.listed) is None  # they are not neighbours
    assert reorganized(parsed(RANGE), ("zz",), split.listed) is None
    assert _change("REMOVE PARTITIONING").partitions is None
    assert _change("PARTITION BY HASH (y) PARTITIONS 3").partitions == made("HASH (y) PARTITIONS 3")


def test_the_partitions_before_a_drop_are_reduced_to_what_tells_their_rows() -> None:
    assert [partition.name for partition in parsed(RANGE).reduced(["B"]).partitions] == ["a", "b"]
    assert [partition.name for partition in parsed(RANGE).reduced(["a"]).partitions] == ["a"]
    assert [partition.name for partition in parsed(RANGE).reduced(["a", "c"]).partitions] == ["a", "b", "c"]
    assert [partition.name for partition in parsed(RANGE).without(["A", "zz"]).partitions] == ["b", "c"]
    listed = made("LIST (y) (PARTITION a VALUES IN (1), PARTITION b DEFAULT)")
    assert listed is not None and listed.reduced(["b"]) == listed
    sub = parsed("RANGE (`y`) SUBPARTITION BY HASH (`y`) SUBPARTITIONS 2 (PARTITION `a` VALUES LESS THAN (5))")
    assert sub.subpartition("ASP1") == (0, 1)
    assert sub.has("asp0") and not sub.has("asp2")
    assert sub.reduced(["asp1"]) == sub


def test_the_same_definition_in_another_order_is_the_same() -> None:
    first, other = (
        made("LIST (y) (PARTITION a VALUES IN (2, NULL, 1))"),
        made("LIST (y) (PARTITION a VALUES IN (NULL, 1, 2))"),
    )
    assert first is not None and first != other and first.is_same(other)
    assert not first.is_same(made("LIST (y) (PARTITION a VALUES IN (NULL, 1))"))
    assert not first.is_same(None)


def test_partitions_that_move() -> None:
    def moves(clause: str) -> list[MovePartition]:
        return [
            change for change in classify(f"ALTER TABLE t {clause}", "s").changes if isinstance(change, MovePartition)
        ]

    t, b = ("s", "t"), ("s", "b")
    for validation in ("", " WITH VALIDATION"):
        assert moves(f"EXCHANGE PARTITION `p``q` WITH TABLE b{validation}") == [
            MovePartition(t, b, "p`q", is_partitioned=True), MovePartition(b, t, "p`q", is_partitioned=False),
        ]  # fmt: skip
    first, second = moves("EXCHANGE PARTITION p WITH TABLE x.b WITHOUT VALIDATION")
    assert not first.validates and not second.validates and first.other == second.table == ("x", "b")
    assert moves("CONVERT PARTITION p TO TABLE b") == [MovePartition(b, t, "p", is_partitioned=False)]
    convert = "CONVERT TABLE b TO PARTITION p VALUES LESS THAN (5) COMMENT 'WITH'"
    assert moves(convert) == [MovePartition(t, b, None, is_partitioned=True)]
    added = next(
        change for change in classify(f"ALTER TABLE t {convert}", "s").changes if isinstance(change, ChangePartitions)
    )
    assert added.listed == (Partition("p", (("5",),)),)


def test_dropped_partitions() -> None:
    def drop(clause: str) -> object:
        (change,) = classify(f"ALTER TABLE t {clause}", "s").changes
        return change

    assert drop("DROP PARTITION p, `q``r`") == DropPartitions(("s", "t"), ("p", "q`r"))
    assert drop("DROP PARTITION IF EXISTS p") == DropPartitions(("s", "t"), ("p",), if_exists=True)
    assert drop("TRUNCATE PARTITION p") == DropPartitions(("s", "t"), ("p",), truncates=True)
    assert drop("TRUNCATE PARTITION ALL") == DropPartitions(("s", "t"), (), truncates=True)
    assert drop("ALGORITHM=INPLACE, LOCK=NONE, DROP PARTITION `all`") == DropPartitions(("s", "t"), ("all",))


def test_the_columns_that_tell_a_partition() -> None:
    definition = made("RANGE (y DIV 2 + TO_DAYS(d) - y) SUBPARTITION BY HASH (c) (PARTITION a VALUES LESS THAN (1))")
    assert definition is not None
    assert definition.columns == ("y", "d", "c")
    assert columns_of(definition.expressions[0]) == ("y", "d")
