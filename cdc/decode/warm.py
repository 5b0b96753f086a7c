"""Loading all kernels at once, for processes that others are forked from."""

from __future__ import annotations

import base64
import tempfile
import zlib
from pathlib import Path

# A binlog file with one transaction that inserts 1 into towpath.warm (id INT PRIMARY KEY): deflated, base 85.
_PACKED = (
    "c-"
    "s4yl$poyF*uc<k%57s8i?x|K!An8QqNq^gn?8bOuSM?FV(8|AgdKYR(k;Pai|13fNEfZ>x9t`auO<BY{4#7zd`0Ofy51g_y>wAb`"
    "VjLUtW+{lEL8Q>h9?$uzS*CkOpCp5?dfP1*=VgYGa2fW+_iB%4J|=204j=g_$Wcg@chn+WH$iNV6PBj|LFOqG)DfVEhlZT78a4Fi"
    "4#Mh$9cgHH^rvGF_s$9RSeQDMt"
)


def sample() -> bytes:
    """A whole binlog file of one row."""
    return zlib.decompress(base64.b85decode(_PACKED))


def warm_up() -> None:
    """Decode a row: the kernels that all tables need are then loaded from their cache or compiled. Those of conversions
    are loaded where a column needs them, which in most workers none does."""
    from cdc.decode.reader import read

    with tempfile.TemporaryDirectory(prefix="towpath-") as folder:
        path = Path(folder) / "binlog.000001"
        path.write_bytes(sample())
        for _ in read(path, table="towpath.warm"):
            pass
