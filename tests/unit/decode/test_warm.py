"""The sample that loads the kernels is the builder's, and decodes."""

from __future__ import annotations

from pathlib import Path

from cdc.decode import read
from cdc.decode.warm import sample, warm_up
from cdc.testing.binlog import BinlogBuilder


def test_sample(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("towpath", "warm", [1])
    assert sample() == log.data
    path = tmp_path / "binlog.000001"
    path.write_bytes(sample())
    assert [batch.column("id").to_pylist() for batch in read(path, table="towpath.warm")] == [[1]]
    warm_up()
