"""Row events whose rows lack columns, rewritten into events with all columns."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest

from cdc.decode.kernels import constants as k
from cdc.decode.kernels.rows import EventArrays
from cdc.decode.row_events import PartialFault, fill_images
from tests.support.unit_decode import uncompiled

TAIL = 4
Row = list[bytes | None]


def spec_of(rng: random.Random, columns: int, needed: set[int]) -> np.ndarray:
    """Columns of four bytes, and such with a length of one or two bytes before them."""
    spec = np.zeros((columns, k.SPEC_SIZE), dtype=np.int64)
    for c in range(columns):
        spec[c, k.SPEC_WIDTH], spec[c, k.SPEC_PREFIX] = rng.choice(((4, 0), (0, 1), (0, 2)))
        if c in needed:
            spec[c, rng.choice((k.SPEC_KIND, k.SPEC_KEY))] = 1
    return spec


def bits(flags: list[bool]) -> bytes:
    return sum(flag << n for n, flag in enumerate(flags)).to_bytes((len(flags) + 7) // 8, "little")


def image(row: Row, held: list[int]) -> bytes:
    return bits([row[c] is None for c in held]) + b"".join(row[c] or b"" for c in held)


def event(kind: int, columns: int, helds: list[list[int]], rows: list[list[Row]], tail: bytes) -> bytes:
    """A row event with the table id 1; ``rows`` has one image for each row, of updates two."""
    head = (1).to_bytes(6, "little") + b"\1\0" + (b"\5\0abc" if kind >= 30 else b"")
    count = bytes([columns]) if columns < 251 else b"\xfc" + columns.to_bytes(2, "little")
    bitmaps = [bits([c in held for c in range(columns)]) for held in helds]
    if all(len(held) == columns for held in helds):  # the bits behind the last column have no meaning, and are set
        bitmaps = [b"\xff" * ((columns + 7) // 8)] * len(helds)
    body = head + count + b"".join(bitmaps)
    body += b"".join(image(values, held) for row in rows for values, held in zip(row, helds, strict=True))
    length = 19 + len(body) + len(tail)
    return bytes([1, 2, 3, 4, kind, 5, 6, 7, 8]) + length.to_bytes(4, "little") + bytes(6) + body + tail


def arrays(*events: bytes) -> EventArrays:
    lengths = np.array([len(event) for event in events], dtype=np.int64)
    kinds = np.array([event[4] for event in events], dtype=np.int64)
    buf = np.frombuffer(b"".join(events), dtype=np.uint8)
    return EventArrays(buf, np.cumsum(lengths) - lengths, lengths, kinds, np.zeros(len(events), dtype=np.int64), TAIL)


def case(rng: random.Random) -> tuple[np.ndarray, EventArrays, bytes]:
    """The columns, part events of any kind, and what they become."""
    columns = rng.choice((1, 2, 7, 8, 9, 30, 300))
    needed = {c for c in range(columns) if rng.random() < 0.5} or {0}
    spec = spec_of(rng, columns, needed)
    part, whole = [], []
    for _ in range(rng.randint(1, 4)):
        kind = rng.choice((23, 24, 25, 30, 31, 32))
        images = 2 if kind in (24, 31) else 1
        helds = [[c for c in range(columns) if c in needed or rng.random() < 0.5] for _ in range(images)]
        rows: list[list[Row]] = []
        for _ in range(rng.randint(1, 5)):
            row: list[Row] = []
            for held in helds:
                values: Row = [None] * columns
                for c in held:
                    if rng.random() < 0.8:
                        prefix = int(spec[c, k.SPEC_PREFIX])
                        text = rng.randbytes(rng.randrange(6) if prefix else 4)
                        values[c] = (len(text).to_bytes(prefix, "little") if prefix else b"") + text
                row.append(values)
            rows.append(row)
        part.append(event(kind, columns, helds, rows, b"sums"))
        whole.append(event(kind, columns, [list(range(columns))] * images, rows, bytes(TAIL)))
    return spec, arrays(*part), b"".join(whole)


@pytest.mark.parametrize("kernels", [nullcontext, uncompiled])
def test_rows_get_nulls_for_missing_columns(kernels: type[AbstractContextManager[None]], seed: int) -> None:
    rng = random.Random(seed)
    with kernels():
        for _ in range(150):
            spec, events, expected = case(rng)
            buf, offset, length = fill_images(events, spec)
            assert buf.tobytes() == expected
            assert offset.tolist() == [0, *np.cumsum(length)[:-1].tolist()] and int(length.sum()) == len(expected)


def test_missing_columns_that_are_wanted_or_of_the_key_are_named() -> None:
    for field in (k.SPEC_KIND, k.SPEC_KEY):
        for kind, helds in ((23, [[0, 2]]), (31, [[0, 1, 2], [0, 2]]), (31, [[0, 2], [0, 1, 2]])):
            spec = spec_of(random.Random(1), 3, set())
            spec[1, field] = 1
            row: list[Row] = [[None] * 3 for _ in helds]
            with pytest.raises(PartialFault) as raised:
                fill_images(arrays(event(kind, 3, helds, [row], b"sums")), spec)
            assert (raised.value.code, raised.value.column) == (k.PART_IMAGE, 1)
    nothing = spec_of(random.Random(1), 3, set())
    with pytest.raises(PartialFault) as raised:
        fill_images(arrays(event(23, 3, [[]], [[[None] * 3]], b"sums")), nothing)
    assert (raised.value.code, raised.value.column) == (k.PART_IMAGE, -1)


def test_damage_is_a_fault_and_never_a_crash(seed: int) -> None:
    rng = random.Random(seed)
    faults = 0
    for _ in range(300):
        spec, events, _ = case(rng)
        raw = bytearray(events.buf.tobytes())
        for _ in range(rng.choice((1, 1, 5))):
            at = rng.randrange(len(raw))
            if all(not 4 <= at - offset < 5 for offset in events.offset):
                raw[at] = rng.randrange(256)
        damaged = events._replace(buf=np.frombuffer(bytes(raw), dtype=np.uint8))
        outcomes: list[bytes | tuple[int, int, int]] = []
        for kernels in (nullcontext, uncompiled):
            with kernels():
                try:
                    outcomes.append(fill_images(damaged, spec)[0].tobytes())
                except PartialFault as fault:
                    outcomes.append((fault.code, fault.column, fault.pos))
        assert outcomes[0] == outcomes[1]
        first = outcomes[0]
        if isinstance(first, tuple):
            assert first[0] in (k.BAD_HEADER, k.WRONG_COLUMNS, k.PART_IMAGE, k.CUT)
            faults += 1
    assert faults > 30
