"""The scan for the first unknown transaction: other orders of commits, errant transactions, other histories."""

from __future__ import annotations

import pytest

from cdc.base.errors import IdentityError, SourceRefusedError
from cdc.binlog.gtids import Flavor, GtidSet, MariadbGtid, parse_state
from cdc.binlog.positions import BinlogPosition
from cdc.source.resume import LastStored, ResumeScan
from cdc.source.scan import ScannedTransaction

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4f11fa47-71ca-11e1-9e33-c80aa9429562"
BYTES = 100


def scan(
    executed: str, *gtids: str | None, before: str = "", last: LastStored | None = None, mariadb: bool = False
) -> tuple[ResumeScan, int]:
    """Returns the finished scan, and how many of the transactions it has looked at. The new server is B."""
    flavor: Flavor = "mariadb" if mariadb else "mysql"
    scan = ResumeScan(flavor, parse_state(executed, flavor), B, parse_state(before, flavor), last, "source")
    for number, text in enumerate(gtids):
        gtid = MariadbGtid.parse(text) if mariadb and text is not None else text
        begin, end = (BinlogPosition("binlog.000001", 4 + BYTES * n) for n in (number, number + 1))
        if scan.ends_with(ScannedTransaction(begin, end, gtid, (1000 + number) * 1_000_000)):
            return scan, number + 1
    return scan, len(gtids)


def at(number: int) -> BinlogPosition:
    return BinlogPosition("binlog.000001", 4 + BYTES * number)


def test_the_first_unknown_transaction() -> None:
    resume, looked_at = scan(f"{A}:1-3", f"{A}:1", f"{A}:2", f"{A}:3", f"{B}:1", f"{B}:2")
    assert (resume.position, resume.overlap, looked_at) == (at(3), GtidSet(), 4)
    resume.require_no_errant()


def test_everything_is_known() -> None:
    resume, _ = scan(f"{A}:1-9", f"{A}:8", f"{A}:9", before=f"{A}:1-7")
    assert (resume.position, resume.end) == (None, at(2))
    resume, _ = scan(f"{A}:1-9", before=f"{A}:1-9")
    assert (resume.position, resume.end) == (None, None)


def test_another_order_of_commits_gives_an_overlap() -> None:
    resume, looked_at = scan(f"{A}:1-2:4-5", *[f"{A}:{n}" for n in (1, 3, 2, 5, 4, 6, 7)])
    assert (resume.position, str(resume.overlap), resume.overlap_end) == (at(1), f"{A}:2:4-5", at(5))
    assert looked_at == 5
    resume.require_no_errant()


def test_own_transactions_before_known_ones_are_errant() -> None:
    resume, _ = scan(f"{A}:1-3", f"{A}:1", f"{B}:1", f"{A}:2", f"{B}:2", f"{A}:3", f"{B}:3")
    with pytest.raises(SourceRefusedError, match=f"2 errant transactions.*{B}:1-2"):
        resume.require_no_errant()


def test_transactions_without_gtids_before_known_ones_are_passed() -> None:
    resume, _ = scan(f"{A}:1-2", None, f"{A}:1", None, f"{A}:2", f"{A}:3")
    assert (resume.position, resume.overlap_end) == (at(4), None)


def test_domains_in_another_order() -> None:
    executed = "0-1-5,1-1-3"
    resume, looked_at = scan(executed, "0-1-4", "0-1-5", "0-1-6", "1-1-3", "0-2-7", before="0-1-3,1-1-2", mariadb=True)
    assert (resume.position, resume.overlap_end, looked_at) == (at(2), at(4), 4)
    assert "1-1:3" in resume.overlap and "0-1:6" not in resume.overlap
    resume.require_no_errant()


def test_errant_transactions_of_mariadb_have_taken_numbers() -> None:
    resume, _ = scan("0-1-5", "0-1-4", "0-2-5", "0-1-5", "0-2-6", before="0-1-3", mariadb=True)
    with pytest.raises(SourceRefusedError, match=r"1 errant transactions.*0-2-5"):
        resume.require_no_errant()
    resume, _ = scan("0-1-5", "0-1-4", "0-1-5", "0-2-6", before="0-1-3", mariadb=True)
    resume.require_no_errant()
    assert resume.position == at(2)


def test_a_transaction_of_another_time_is_of_another_history() -> None:
    gtids = ("0-1-4", "0-1-5", "0-1-6")
    scan("0-1-5", *gtids, before="0-1-3", last=LastStored("0-1-5", 1001), mariadb=True)
    with pytest.raises(IdentityError, match="0-1-5 is not the one in the store"):
        scan("0-1-5", *gtids, before="0-1-3", last=LastStored("0-1-5", 1077), mariadb=True)
