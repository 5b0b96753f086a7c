"""The keys that differ: rows of both sides, and changes between their positions."""

from __future__ import annotations

import zlib

import pytest

from cdc.lake.jobs.values import Verify
from cdc.lake.verify.buckets import Buckets
from cdc.lake.verify.columns import Weights, joined_in_pairs
from cdc.lake.verify.compare import BucketSum, KeyedRow, Narrowing, add_sums, differing
from cdc.lake.verify.report import Difference, TableReport, VerificationReport


def narrow(
    source: list[tuple[str, int]],
    delta: list[tuple[str, int]],
    changes: list[tuple[str, int, int, int]] = [],  # noqa: B006 - is not changed
    *,
    has_key: bool = True,
    low_seq: int = 100,
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """``changes``: key, checksum, sign, seq."""
    narrowing = Narrowing(has_key=has_key, low_seq=low_seq)
    narrowing.add_source(source)
    narrowing.add_delta(KeyedRow(key, checksum, 1, 0) for key, checksum in delta)
    narrowing.add_changes(KeyedRow(*change) for change in changes)
    return [(finding.key, finding.source, finding.delta) for finding in narrowing.findings()]


def test_rows_without_changes() -> None:
    assert narrow([("a", 1), ("b", 2)], [("b", 2), ("a", 1)]) == []
    assert narrow([("a", 1), ("b", 2)], [("a", 3)]) == [("a", (1,), (3,)), ("b", (2,), ())]
    assert narrow([("a", 1)], [("a", 1), ("a", 1)]) == [("a", (1,), (1, 1))]


def test_a_changed_row_is_what_the_last_change_made_it() -> None:
    update = [("a", 1, -1, 10), ("a", 2, 1, 10)]
    assert narrow([("a", 2)], [("a", 1)], update) == []
    assert narrow([], [("a", 1)], [("a", 1, -1, 10)]) == []
    assert narrow([("a", 5)], [], [("a", 5, 1, 10)]) == []
    # The source was written to without a trace after the change.
    assert narrow([("a", 3)], [("a", 1)], update) == [("a", (3,), (2,))]


def test_a_wrong_row_is_found_although_a_change_will_replace_it() -> None:
    update = [("a", 1, -1, 10), ("a", 2, 1, 10)]
    assert narrow([("a", 2)], [("a", 9)], update) == [("a", (1,), (9,))]
    assert narrow([("a", 2)], [], update) == [("a", (1,), ())]


def test_changes_after_the_low_mark_may_be_missing_at_the_source() -> None:
    changes = [("a", 1, -1, 10), ("a", 2, 1, 10), ("a", 2, -1, 20), ("a", 3, 1, 20), ("a", 3, -1, 30)]
    for row in ([("a", 2)], [("a", 3)], []):
        assert narrow(row, [("a", 1)], changes, low_seq=10) == []
    assert narrow([("a", 1)], [("a", 1)], changes, low_seq=10) != []
    assert narrow([("a", 2)], [("a", 1)], changes, low_seq=25) != []
    # Inside one transaction nothing is visible: neither side may lack the row.
    assert narrow([], [("a", 1)], changes[:4], low_seq=10) != []


def test_rows_without_a_key_are_a_multiset() -> None:
    changes = [("x", 1, 1, 10), ("y", 2, -1, 10)]
    assert narrow([("x", 1), ("x", 1)], [("x", 1), ("y", 2)], changes, has_key=False) == []
    assert narrow([("x", 1)], [("x", 1), ("y", 2)], changes, has_key=False) == [("x", (1,), (1, 1))]


def test_sums_add_up() -> None:
    first, other = {1: BucketSum(2, 10), 2: BucketSum(1, 5)}, {2: BucketSum(1, 5), 3: BucketSum(1, 7)}
    assert add_sums(first, other) == {1: (2, 10), 2: (2, 10), 3: (1, 7)}
    assert differing(first, add_sums(first, other, -1)) == [2, 3]
    assert differing({1: BucketSum(0, 0)}, {}) == []


@pytest.mark.parametrize(("key", "bucket"), [("7,", 7 % 5), ("-7,", -2), (",", 0), ("18446744073709551615,", 0)])
def test_the_bucket_of_an_integer_is_its_remainder(key: str, bucket: int) -> None:
    assert Buckets(5, is_plain=True).of(key) == bucket


def test_the_bucket_of_other_keys_is_hashed() -> None:
    assert Buckets(64, is_plain=False).of("1:é,") == zlib.crc32("1:é,".encode()) % 64


@pytest.mark.parametrize(("key", "bucket"), [("-9,", 0), ("-5,", 0), ("-4,", 1), ("7,", 1), ("8,", 2), (",", 2)])
def test_ranges_end_with_their_border(key: str, bucket: int) -> None:
    assert Buckets(3, is_plain=True, borders=(-5, 7)).of(key) == bucket


def test_each_column_has_weights_of_its_own() -> None:
    all_weights = [Weights.of(at) for at in range(4096)]
    for weights, bits in zip(zip(*all_weights, strict=True), (31, 29, 24), strict=True):
        assert all(weight % 2 and weight.bit_length() == bits for weight in weights)
        assert len(set(weights)) > 4096 - 5
    assert len(set(all_weights)) == 4096
    seconds, largest = 10_000 * 366 * 86_400, max(all_weights, key=lambda column_weights: column_weights.small)
    assert seconds * largest.small + 10**6 * 2**31 < 2**63
    assert 2**31 * 2**31 + 2**33 * 2**29 <= 2**63


def test_exit_codes_and_the_document() -> None:
    report = VerificationReport("shop", tables=[TableReport("shop.a", "upsert")])
    table = report.tables[0]
    assert (report.state, report.exit_code) == ("unknown", 1)
    table.ledger.ok = table.checksums.ok = True
    assert (report.state, report.exit_code, report.document()["ok"]) == ("proved", 0, True)
    table.checksums.excepted["w"] = "the Delta table lacks it, by schema_changes: ignore"
    assert (report.state, report.exit_code, table.verdict) == ("proved", 0, "equal, except w, not compared")
    table.checksums.left_out["v"] = "it was added later"
    assert (report.state, report.exit_code, report.document()["ok"]) == ("partial", 1, False)
    assert table.verdict == "equal, except v, w, not compared"
    table.unknown.append("the table is parked")
    assert report.exit_code == 1
    table.checksums.differences.append(Difference({"id": "1"}, {"id": "1", "v": None}, {"id": "1", "v": "x"}))
    assert (report.state, report.exit_code) == ("differs", 2)
    assert table.checksums.differences[0].columns == ["v"]
    table.ledger.gaps.append((1, 2))
    results, _ = Verify([]).types()
    assert results.validate_json(results.dump_json(report)) == report
    report.tables.clear()
    report.history.faults.append("the source executed what the store lacks")
    assert report.exit_code == 2


def test_the_words_of_thousands_of_columns_are_joined_without_a_deep_expression() -> None:
    assert joined_in_pairs([0] * 4096, lambda left, right: max(left, right) + 1) == 12
    assert joined_in_pairs(["a", "b", "c", "d", "e"], lambda left, right: left + right) == "abcde"
    assert joined_in_pairs([7], lambda left, right: left + right) == 7
