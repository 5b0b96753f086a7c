"""The warm_up_file that loads the kernels is the builder's, and decodes."""

from __future__ import annotations

from pathlib import Path

from cdc.decode import read
from cdc.decode.reader import warm_up, warm_up_file
from cdc.testing.binlog import BinlogBuilder


def test_warm_up_file(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("towpath", "warm", [1])
    assert warm_up_file() == log.data
    path = tmp_path / "binlog.000001"
    path.write_bytes(warm_up_file())
    assert [batch.column("id").to_pylist() for batch in read(path, table="towpath.warm")] == [[1]]
    warm_up()
