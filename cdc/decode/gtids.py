"""GTIDs of index entries as text, for many transactions at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.binlog.entry import Entries, EntryFlag, format_gtid


def gtid_strings(entries: Entries) -> pa.Array:
    """One string for each entry, as the server prints its (last) GTID; null where it has none.

    All but the number is the same for most transactions: it is formatted once for each distinct source.
    """
    if len(entries) == 0:
        return pa.array([], pa.string())
    key = np.zeros((len(entries), 50), dtype=np.uint8)
    key[:, :16] = np.ascontiguousarray(entries["gtid_source"]).view(np.uint8).reshape(-1, 16)
    key[:, 16:48] = np.ascontiguousarray(entries["gtid_tag"]).view(np.uint8).reshape(-1, 32)
    key[:, 48] = (entries["flags"] & int(EntryFlag.GTID_MARIADB)) != 0
    key[:, 49] = entries["gtid_count"] != 0
    if (key == key[0]).all():
        first, inverse = np.zeros(1, dtype=np.int64), np.zeros(len(entries), dtype=np.int64)
    else:
        _, first, inverse = np.unique(key.view("V50").ravel(), return_index=True, return_inverse=True)
    prefixes = []
    for at in first:
        text = format_gtid(entries[at])
        prefixes.append(None if text is None else text[: -len(str(int(entries["gtid_number"][at])))])
    numbers = pc.cast(pa.array(np.ascontiguousarray(entries["gtid_number"])), pa.string())
    return pc.binary_join_element_wise(pa.array(prefixes, pa.string()).take(pa.array(inverse)), numbers, "")
