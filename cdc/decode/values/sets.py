"""SET: bits to the names of its members."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from cdc.decode.conversion import BadValueError


def set_text(members: Sequence[str], raw: pa.Array) -> pa.Array:
    """Little-endian bit maps (``binary``, 1 to 8 bytes) to ``string``: the members in their order, with commas between.

    Raises BadValueError for a bit beyond the last member.
    """
    encoded = pc.dictionary_encode(raw)
    texts = []
    for number, value in enumerate(encoded.dictionary.to_pylist()):
        bits = int.from_bytes(value, "little")
        if bits >> len(members):
            row = pc.index(encoded.indices, pa.scalar(number, encoded.indices.type)).as_py()
            raise BadValueError(row, "a SET with more members than its column has")
        texts.append(",".join(member for at, member in enumerate(members) if bits >> at & 1))
    return pa.array(texts, pa.string()).take(encoded.indices)
