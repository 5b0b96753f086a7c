"""An archive of version 1 of the format: it is read, restored, and written to by a later Towpath."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cdc.copies.archive.restore import restore
from cdc.copies.archive.verify import verify
from cdc.copies.archive.writer import Archiver
from cdc.decode import read
from cdc.meta.file import FileMeta
from cdc.store.formats.layout import list_segments
from cdc.store.reader.reader import StoreReader
from tests.support.archives import Host, make_host

GOLDEN = Path(__file__).parents[3] / "golden" / "archive-v1"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    shutil.copytree(GOLDEN, tmp_path / "archive")
    return make_host(tmp_path / "host", tmp_path / "archive")


def test_it_is_sound(host: Host) -> None:
    newest = host.archive().newest()
    assert newest is not None
    assert (newest.state.number, newest.state.writer.host, newest.state.writer.how) == (2, "store-host", "first")
    assert [segment.name for segment in newest.segments] == [
        "000-0000001-00000000004.binlog",
        "000-0000002-00000000004.binlog",
        "000-0000003-00000000004.binlog",
    ]
    assert verify(host.archive()).faults == []


def test_it_is_restored_and_written_to(host: Host) -> None:
    done = restore(host.config)
    assert (done.segments, done.meta) == (3, "restored")
    state = FileMeta(host.config.meta.path, "shop").read()
    assert state.source is not None and state.source.flavor == "mysql"
    assert state.subscriptions["apply"].acked_seq > 0 and state.subscriptions["apply"].outstanding == []
    assert len(list((host.config.meta.path / "manifests" / "apply").glob("*.json"))) == 1
    assert StoreReader(host.store).last_seq() == done.last_seq
    rows = [row for batch in read(host.store, table="shop.items") for row in batch.to_pylist()]
    assert [(row["id"], row.get("note")) for row in rows] == [(4000000000, None), (7, "last")]
    host.ack(done.last_seq)
    Archiver(host.config).run(everything=True)
    assert verify(host.archive()).faults == []
    assert host.archived() == [path.name for path in list_segments(host.store)]
