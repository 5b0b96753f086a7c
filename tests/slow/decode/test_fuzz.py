"""Damaged row events and table maps give one of our errors or rows, and no byte outside an event is read.

``TOWPATH_FUZZ_ROUNDS`` sets how many random changes each golden file gets, ``TOWPATH_EVERY_BYTE`` takes every byte and many
values in all events instead of a choice.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from cdc.base.errors import DamagedError, SourceRefusedError
from cdc.decode.transactions import Transactions
from tests.support.unit_decode import (
    KINDS,
    TABLE,
    TYPED_KINDS,
    TYPED_TABLES,
    batches,
    changed,
    decode_typed,
    find_events,
    golden,
    typed,
)
from tests.support.unit_decode_fuzz import (
    DELETES,
    EVERY_BYTE,
    INSERTS,
    PARTIAL,
    ROUNDS,
    UPDATES,
    Outcomes,
    cuts,
    first,
    flips,
    lengthened,
    random_changes,
    targets,
)

HEADER_ONLY = ("the row event's header is damaged", "another number of columns than its table map")
MEMORY_BYTES = 400 << 20
"""A damaged length must not make the decoder allocate that much memory."""

EVENTS = [(*table, kinds) for table in TYPED_TABLES for kinds in (INSERTS, UPDATES, DELETES)] + [
    ("mysql9", "kinds", {PARTIAL})
]


def _check(outcomes: Outcomes) -> None:
    """Checks that errors in values name the column; only errors before the first value do not."""
    for message in outcomes.without_column:
        assert any(why in message for why in HEADER_ONLY), message


@pytest.mark.parametrize(("kind", "table", "events"), EVENTS)
def test_cut_at_every_byte(kind: str, table: str, events: set[int]) -> None:
    target = first(kind, table, events)
    outcomes = cuts(target, 1)
    assert outcomes.all == 2 * (target.length - 4 - 27)
    # Rows come back only if the event ends between its header and the first row, or between two rows.
    assert outcomes.differ <= 2 * len(target.sound(None, "both")) * 4
    assert outcomes.same == 0
    if events != {PARTIAL}:
        _check(outcomes)


@pytest.mark.parametrize(
    ("kind", "table", "events"),
    [pytest.param(*case, marks=[] if case[0] == "mysql9" else pytest.mark.long) for case in EVENTS],
)
def test_changed_at_every_byte(kind: str, table: str, events: set[int], seed: int) -> None:
    dice = random.Random(seed)
    outcomes = Outcomes()
    for target in targets(kind, table, events)[: None if EVERY_BYTE else 1]:
        # The bytes of a partial update are not known by column, so that all columns are decoded each time.
        step = 1 if EVERY_BYTE or events != {PARTIAL} else 8
        outcome = flips(target, step, 18 if EVERY_BYTE else 1, dice)
        assert outcome.all >= (target.length - 31) // step
        outcomes.add(outcome)
    if events != {PARTIAL}:
        _check(outcomes)
    assert outcomes.refused > outcomes.all // 50
    assert outcomes.differ > outcomes.all // 5
    # Few bytes have no meaning: flags, unused bits of bitmaps and the inside of a compressed stream.
    assert outcomes.same < outcomes.all // 10


@pytest.mark.parametrize(("kind", "table"), TYPED_TABLES)
def test_bytes_put_in_and_taken_out(kind: str, table: str, seed: int) -> None:
    outcomes = lengthened(first(kind, table, INSERTS), random.Random(seed))
    _check(outcomes)
    assert outcomes.refused > outcomes.all // 3


@pytest.mark.parametrize("kind", TYPED_KINDS)
@pytest.mark.parametrize("change", ["fewer", "more", "none", "wide", "odd"])
def test_wrong_column_counts(kind: str, change: str) -> None:
    target = first(kind, "kinds", INSERTS)
    columns = len(target.names)
    at = target.event.index(bytes([columns]), 27)
    count = {"fewer": columns - 1, "more": columns + 1, "none": 0, "wide": 252, "odd": 251}[change]
    with pytest.raises(DamagedError, match=rf"row event at {target.pos}, byte \d+, table shop\.kinds: the row event"):
        target.decode(target.event[:at] + bytes([count]) + target.event[at + 1 :], None, "after")


@pytest.mark.parametrize("kind", TYPED_KINDS)
def test_missing_columns(kind: str) -> None:
    target = first(kind, "kinds", INSERTS)
    at = target.event.index(bytes([len(target.names)]), 27) + 1
    with pytest.raises(
        SourceRefusedError, match=rf"position {target.pos}: the rows of table shop\.kinds lack the column "
    ):
        target.decode(target.event[:at] + bytes([target.event[at] & 0xF7]) + target.event[at + 1 :], None, "after")


@pytest.mark.parametrize("kind", TYPED_KINDS)
@pytest.mark.parametrize("length", [0, 18, 22, 27, 30, 2**31, 2**32 - 1])
def test_wrong_event_lengths(kind: str, length: int) -> None:
    """The scan finds a wrong length in an event's header, or the invalid event behind it."""
    target = first(kind, "kinds", INSERTS)
    buf = typed(kind).buf.copy()
    buf[target.pos + 9 : target.pos + 13] = list(length.to_bytes(4, "little"))
    whole = typed(kind)
    with pytest.raises(DamagedError, match=rf"decode-types-{kind}-v1\.binlog, position {target.pos}: "):
        list(decode_typed(Transactions(whole.path, buf, whole.has_checksum, whole.entries), kind))


@pytest.mark.parametrize("kind", sorted({*KINDS, *TYPED_KINDS}))
def test_random_changes(kind: str, seed: int) -> None:
    outcomes = random_changes(kind, seed, ROUNDS)
    assert outcomes.refused > outcomes.all // 20
    assert outcomes.differ > outcomes.all // 20


@pytest.mark.parametrize("kind", KINDS)
def test_cut_rows(kind: str) -> None:
    """A row event whose header claims an earlier end, at every byte."""
    pos, length = next(find_events(golden(kind), {23, 30}))
    whole = golden(kind)
    rows: set[int] = set()
    messages: set[bool] = set()
    for cut in range(1, length - 30):
        entries = whole.entries[:1].copy()
        entries["length"] = pos + length - cut - int(entries["offset"][0])

        def change(buf: Any, cut: int = cut) -> None:
            buf[pos + 9 : pos + 13] = list((length - cut).to_bytes(4, "little"))

        short = changed(Transactions(whole.path, whole.buf, whole.has_checksum, entries), change)
        try:
            rows.add(sum(batch.num_rows for batch in batches(short)))
        except DamagedError as error:
            messages.add(f"row event at {pos}, " in str(error) and TABLE in str(error))
    assert messages == {True}  # each error names the place and the table
    assert rows == {0, 1, 2}  # only between two rows is the rest a row event of its own


@pytest.mark.long
@pytest.mark.timeout(600)
def test_with_bounds_checks(seed: int) -> None:
    """The whole corpus in a process in which every array access of the kernels is checked and memory is measured."""
    script = (
        "from cdc.kernels.jit import BOUNDS_CHECKED; assert BOUNDS_CHECKED\n"
        "from tests.support.unit_decode_fuzz import everything\n"
        f"everything({seed})\n"
    )
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=590, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *tables, memory = [line.split() for line in done.stdout.splitlines()]
    assert [tuple(line[:2]) for line in tables[: len(TYPED_TABLES)]] == TYPED_TABLES
    for line in tables:
        refused, differ, same = (int(number) for number in line[2:])
        assert refused > 10 and differ > 10 and same < (refused + differ) // 5, line
    assert int(memory[1]) < MEMORY_BYTES and int(memory[2]) < MEMORY_BYTES
