"""SET: bits to the names of its members."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from cdc.decode.conversion import by_distinct


def set_text(members: Sequence[str], raw: pa.Array) -> pa.Array:
    """Little-endian bit maps (``binary``, 1 to 8 bytes) to ``string``: the members in their order, with commas between.

    Raises BadValueError for a bit beyond the last member.
    """

    def text(value: bytes) -> str:
        bits = int.from_bytes(value, "little")
        if bits >> len(members):
            raise ValueError("a SET with more members than its column has")
        return ",".join(member for at, member in enumerate(members) if bits >> at & 1)

    return by_distinct(raw, text, pa.string())
