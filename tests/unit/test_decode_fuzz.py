"""Damaged row events and table maps: an error of ours or rows, never anything else, and never a byte outside."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest

from cdc.decode.events import Transactions
from cdc.errors import CdcError, DamagedError
from tests.unit.decode_support import KINDS, TABLE, batches, changed, find_events, golden

EVENTS = {19, 23, 24, 25, 30, 31, 32}
ROUNDS = int(os.environ.get("TOWPATH_FUZZ_ROUNDS", "150"))


def fuzz(kind: str, seed: int, rounds: int) -> tuple[int, int]:
    """Change random bytes behind the header's fixed part; how often it was an error, and how often it gave rows."""
    dice = random.Random(f"{kind}{seed}")
    places = list(find_events(golden(kind), EVENTS))
    refused = accepted = 0
    for _ in range(rounds):
        edits: list[tuple[int, int]] = []
        for _ in range(dice.choice((1, 1, 1, 2, 8))):
            pos, length = dice.choice(places)
            at = pos + dice.randrange(19, length - 4)
            edits.append((at, dice.choice((0, 1, 127, 128, 250, 251, 252, 253, 254, 255, dice.randrange(256)))))

        def change(buf: Any, edits: list[tuple[int, int]] = edits) -> None:
            for at, value in edits:
                buf[at] = value

        try:
            for batch in batches(changed(golden(kind), change), images=dice.choice(("after", "both"))):
                batch.validate(full=True)
            accepted += 1
        except CdcError as error:
            refused += bool(str(error))
    return refused, accepted


@pytest.mark.parametrize("kind", KINDS)
def test_changed_bytes(kind: str, seed: int) -> None:
    refused, accepted = fuzz(kind, seed, ROUNDS)
    assert refused > ROUNDS // 20
    assert accepted > ROUNDS // 20


@pytest.mark.parametrize("kind", KINDS)
def test_cut_rows(kind: str) -> None:
    """A row event that claims to end earlier, at every byte."""
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


def test_with_bounds_checks(seed: int) -> None:
    """The same, with every array access of the kernels checked."""
    script = (
        "from cdc.binlog.jit import BOUNDS_CHECKED; assert BOUNDS_CHECKED\n"
        "from tests.unit.test_decode_fuzz import fuzz\n"
        f"for kind in {KINDS!r}: print(*fuzz(kind, {seed}, {ROUNDS}))\n"
    )
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) == len(KINDS)
