"""The comparison of two accounts of a history finds every way in which a store can be wrong; the readers of accounts."""

from __future__ import annotations

import json

import pytest

from tests.soak.histories.accounts import (
    Change,
    Transaction,
    first_difference,
    gtid_source,
    is_captured_ddl,
    is_captured_table,
)
from tests.soak.histories.server_account import BinlogText
from tests.soak.histories.store_account import transactions

HISTORY = [
    Transaction(f"0-1-{n}", (Change("insert", "hist.t1", None, 10 * n), Change("update", "hist.t2", n, 10 * n + 1)))
    for n in range(1, 9)
]


def test_equal_accounts_have_no_difference() -> None:
    assert first_difference(HISTORY, list(HISTORY)) is None


@pytest.mark.parametrize("at", range(len(HISTORY)))
def test_each_transaction_that_is_missing_is_found(at: int) -> None:
    store = HISTORY[:at] + HISTORY[at + 1 :]
    difference = first_difference(HISTORY, store)
    what = "the store lacks one" if at < len(store) else "the store lacks the server's last 1"
    assert difference is not None and f"number {at} differs: {what}" in difference
    assert f"> server {at}: 0-1-{at + 1} [" in difference


@pytest.mark.parametrize("at", range(len(HISTORY)))
def test_each_transaction_that_is_there_twice_is_found(at: int) -> None:
    for to in range(at + 1, len(HISTORY) + 1):
        store = [*HISTORY[:to], HISTORY[at], *HISTORY[to:]]
        difference = first_difference(HISTORY, store)
        assert difference is not None and f"number {to} differs: the store has one twice" in difference


@pytest.mark.parametrize("at", range(len(HISTORY) - 1))
def test_two_transactions_in_the_wrong_order_are_found(at: int) -> None:
    store = [*HISTORY[:at], HISTORY[at + 1], HISTORY[at], *HISTORY[at + 2 :]]
    difference = first_difference(HISTORY, store)
    assert difference is not None and f"number {at} differs: the order differs" in difference


def test_other_changes_of_a_transaction_and_one_that_the_server_has_not_are_found() -> None:
    transaction = HISTORY[3]
    for changes in (transaction.changes[:1], transaction.changes[::-1], (*transaction.changes, transaction.changes[0])):
        difference = first_difference(HISTORY, [*HISTORY[:3], Transaction(transaction.gtid, changes), *HISTORY[4:]])
        assert difference is not None and "number 3 differs: its changes differ" in difference
    changed = transaction.changes[1]._replace(after=7)
    difference = first_difference(
        HISTORY, [*HISTORY[:3], Transaction(transaction.gtid, (transaction.changes[0], changed)), *HISTORY[4:]]
    )
    assert difference is not None
    assert difference.endswith("change 1: server update hist.t2 4 -> 41; store update hist.t2 4 -> 7")
    alien = Transaction("0-1-99", transaction.changes)
    difference = first_difference(HISTORY, [*HISTORY, alien])
    assert difference is not None and "number 8 differs: the store has one that the server has not" in difference


MYSQL = """\
#261126  7:41:24 server id 1  end_log_pos 127 CRC32 0x8ad9e32a \tStart: binlog v 4, server v 9.7.4-2 created 261126
ROLLBACK/*!*/;
#261126  7:41:24 server id 1  end_log_pos 235 CRC32 0x8c7a9839 \tGTID\tlast_committed=0\tsequence_number=1
/*!80014 SET @@session.immediate_server_version=90704*//*!*/;
SET @@SESSION.GTID_NEXT= 'c74f2002-e96c-11f1-b93b-02fc00000001:1'/*!*/;
#261126  7:41:24 server id 1  end_log_pos 570 CRC32 0x12ad2f32 \tQuery\tthread_id=9\texec_time=0\terror_code=0\tXid = 6
SET TIMESTAMP=1795678884/*!*/;
CREATE TABLE hist.t (token BIGINT,
  id INT PRIMARY KEY)
/*!*/;
SET @@SESSION.GTID_NEXT= 'c74f2002-e96c-11f1-b93b-02fc00000001:2'/*!*/;
#261126  7:41:24 server id 1  end_log_pos 720 CRC32 0xb8bbb272 \tQuery\tthread_id=9\texec_time=0\terror_code=0
SET TIMESTAMP=1795678884/*!*/;
BEGIN
/*!*/;
#261126  7:41:24 server id 1  end_log_pos 794 CRC32 0xbce533e0 \tTable_map: `hist`.`t` mapped to number 106
#261126  7:41:24 server id 1  end_log_pos 867 CRC32 0x1d45f1d7 \tWrite_rows: table id 106 flags: STMT_END_F
### INSERT INTO `hist`.`t`
### SET
###   @1=11
###   @2=1
###   @3='COMMIT/*!*/;\\nXA COMMIT'
### INSERT INTO `other`.`t`
### SET
###   @1=12
### UPDATE `hist`.`t`
### WHERE
###   @1=11
### SET
###   @1=13
#261126  7:41:24 server id 1  end_log_pos 2944 CRC32 0x3d50fd62 \tQuery\tthread_id=12\texec_time=0\terror_code=0
SET TIMESTAMP=1795678884/*!*/;
SAVEPOINT `s`
/*!*/;
### DELETE FROM `hist`.`t`
### WHERE
###   @1=13
#261126  7:41:24 server id 1  end_log_pos 898 CRC32 0x936f8bfa \tXid = 7
COMMIT/*!*/;
"""
XA = """\
SET @@SESSION.GTID_NEXT= 'c74f2002-e96c-11f1-b93b-02fc00000001:one:{n}'/*!*/;
#261126  7:41:24 server id 1  end_log_pos 3140 CRC32 0x0d6f02b1 \tQuery\tthread_id=13\texec_time=0\terror_code=0
XA START X'{xid}',X'',1
/*!*/;
### INSERT INTO `hist`.`t`
### SET
###   @1={n}
#261126  7:41:24 server id 1  end_log_pos 3388 CRC32 0x9df41bb9 \tXA PREPARE X'{xid}',X'',1
XA {how}
/*!*/;
"""
END = """\
SET @@SESSION.GTID_NEXT= 'c74f2002-e96c-11f1-b93b-02fc00000001:{n}'/*!*/;
#261126  7:41:24 server id 1  end_log_pos 3465 CRC32 0x54b8e920 \tQuery\tthread_id=13\texec_time=0\terror_code=0
XA {how} X'{xid}',X'',1
/*!*/;
"""
MARIADB = """\
#261126  7:41:26 server id 1  end_log_pos 676 CRC32 0x6a18dee0 \tGTID 0-1-3 trans
/*M!100001 SET @@session.gtid_seq_no=3*//*!*/;
START TRANSACTION
/*!*/;
#261126  7:41:26 server id 1  end_log_pos 746 CRC32 0xb5882bca \tAnnotate_rows:
#Q> INSERT INTO hist.t VALUES (1,1,'a
#Q> b')
#261126  7:41:26 server id 1  end_log_pos 886 CRC32 0xc6e6e598 \tWrite_rows: table id 18 flags: STMT_END_F
### INSERT INTO `hist`.`t`
### SET
###   @1=NULL
# Number of rows: 1
#261126  7:41:26 server id 1  end_log_pos 917 CRC32 0x140148b3 \tXid = 6
COMMIT/*!*/;
#261126  7:41:26 server id 1  end_log_pos 4461 CRC32 0x28998ac6 \tGTID 0-1-4 ddl
#261126  7:41:26 server id 1  end_log_pos 4598 CRC32 0x5c531cad \tQuery_compressed\tthread_id=13\texec_time=0\terror_code=0
TRUNCATE TABLE hist.t
/*!*/;
#261126  7:41:26 server id 1  end_log_pos 4700 CRC32 0x28998ac6 \tGTID 0-1-5 trans
START TRANSACTION
/*!*/;
### INSERT INTO `hist`.`t`
### SET
###   @1=77
"""


def read(*texts: str) -> BinlogText:
    reading = BinlogText()
    for text in texts:
        reading.new_file()
        reading.read(text.splitlines(keepends=True))
    return reading


def test_rows_and_statements_are_read_from_the_tools_text() -> None:
    first, second = read(MYSQL).account.transactions
    assert first.gtid.endswith("0001:1")
    assert first.changes == (Change("ddl", "", statement="CREATE TABLE hist.t (token BIGINT, id INT PRIMARY KEY)"),)
    assert [str(change) for change in second.changes] == [
        "insert hist.t None -> 11",
        "update hist.t 11 -> 13",
        "delete hist.t 13 -> None",
    ]


def test_a_prepared_transaction_counts_at_its_end() -> None:
    prepared = [XA.format(n=n, xid=f"0{n}", how=f"PREPARE X'0{n}',X'',1") for n in (1, 2, 3)]
    one_phase = XA.format(n=4, xid="04", how="COMMIT X'04',X'',1 ONE PHASE")
    ends = (END.format(n=5, xid="02", how="COMMIT"), END.format(n=6, xid="01", how="ROLLBACK"))
    account = read(*prepared, one_phase, *ends).account
    uuid = "c74f2002-e96c-11f1-b93b-02fc00000001"
    assert account.transactions == [
        Transaction(f"{uuid}:one:4", (Change("insert", "hist.t", None, 4),)),
        Transaction(f"{uuid}:5", (Change("insert", "hist.t", None, 2),)),
    ]
    plain = uuid.replace("-", "")
    assert account.gtids == {f"{plain}:one": {1, 2, 3, 4}, f"{plain}:": {5, 6}}


def test_a_transaction_that_the_servers_death_cut_off_does_not_count() -> None:
    account = read(MARIADB, MARIADB.replace("0-1-", "0-1-1")).account
    assert [transaction.gtid for transaction in account.transactions] == ["0-1-3", "0-1-4", "0-1-13", "0-1-14"]
    assert account.transactions[0].changes == (Change("insert", "hist.t"),)
    assert account.gtids == {"0": {3, 4, 13, 14}}


def test_only_captured_tables_count() -> None:
    assert is_captured_table("hist.t1") and not is_captured_table("hist.hidden_1") and not is_captured_table("other.t1")
    assert is_captured_ddl("RENAME TABLE hist.hidden TO `hist`.`d1`") and is_captured_ddl(
        "DROP TABLE `hist`.`n` /* x */"
    )
    for statement in (
        "ALTER TABLE hist.hidden ADD COLUMN c INT",
        "CREATE DATABASE hist",
        "CREATE TABLE other.t (a INT)",
        "CREATE DEFINER=`t`@`127.0.0.1` TRIGGER hist.t2_log AFTER INSERT ON hist.t2 FOR EACH ROW SET @a = 1",
    ):
        assert not is_captured_ddl(statement), statement


def line(seq: int, op: str, **values: object) -> str:
    gtid = f"0-1-{seq}"
    return json.dumps({"seq": seq, "op": op, "gtid": gtid, "table": "hist.t", "before": None, "after": None} | values)


def test_the_stores_lines_are_grouped_by_seq_which_rises() -> None:
    lines = [
        line(5, "ddl", sql="TRUNCATE  TABLE hist.t"),
        line(7, "insert", after={"token": 1, "id": 1}),
        line(7, "update", before={"token": 1}, after={"token": 2}),
        line(8, "delete", before={"token": 2}),
    ]
    assert list(transactions(lines)) == [
        Transaction("0-1-5", (Change("ddl", "", statement="TRUNCATE TABLE hist.t"),)),
        Transaction("0-1-7", (Change("insert", "hist.t", None, 1), Change("update", "hist.t", 1, 2))),
        Transaction("0-1-8", (Change("delete", "hist.t", 2, None),)),
    ]
    for wrong in ([lines[3], lines[1]], [lines[1], lines[3], lines[1]]):
        with pytest.raises(AssertionError, match="seq 7 comes after 8"):
            list(transactions(wrong))


def test_gtids_are_counted_by_their_source() -> None:
    assert gtid_source("3-17-99") == ("3", 99)
    assert gtid_source("c74f2002-e96c-11f1-b93b-02fc00000001:7") == ("c74f2002e96c11f1b93b02fc00000001:", 7)
    assert gtid_source("c74f2002-e96c-11f1-b93b-02fc00000001:tag:7") == ("c74f2002e96c11f1b93b02fc00000001:tag", 7)
