"""Byte by byte: a store cut at every byte, and each of its bytes flipped, opens with a prefix of whole transactions or
says what is damaged; what was acknowledged is there, or named as lost.

``TOWPATH_EVERY_BYTE=1`` tries every byte; without it every thirteenth, the first one moving with the test.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from cdc.base.errors import CdcError, DamagedError, VersionError
from cdc.batches.manifest import Manifest
from cdc.batches.manifest_files import parse_manifest
from cdc.binlog.entry import Entries
from cdc.disk import files
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta import Outstanding
from cdc.meta.file import FileMeta, parse
from cdc.store.formats.checkpoint import FILE_NAME
from cdc.store.formats.checkpoint import parse as parse_checkpoint
from cdc.store.formats.index import IndexFile, read_entries
from cdc.store.formats.layout import index_path, list_segments
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.testing.faults import UnflushedFiles
from cdc.testing.meta_contract import add_batch
from cdc.testing.transactions import make_transactions

STRIDE = 1 if os.environ.get("TOWPATH_EVERY_BYTE") else 13
COUNT = 4
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(autouse=True, scope="module")
def unflushed() -> Iterator[None]:
    """Syncs nothing: the test opens a store thousands of times, and no power cut follows."""
    with files.use(UnflushedFiles()):
        yield


def places(start: int, stop: int, first: int) -> range:
    """Returns the bytes to try, always with the last one."""
    return range(start + (first % STRIDE), stop, STRIDE)


@dataclass
class Crashed:
    """A store as a killed writer leaves it: all transactions are acknowledged, and it was not closed."""

    path: Path
    segment: Path
    entries: Entries

    @property
    def data(self) -> bytes:
        return self.segment.read_bytes()

    @property
    def ends(self) -> list[int]:
        return [int(e["offset"] + e["length"]) for e in self.entries]

    @property
    def seqs(self) -> list[int]:
        return [int(e["seq"]) for e in self.entries]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    """Copies the store while its writer is at work."""
    path = tmp_path_factory.mktemp("crashed")
    log = TransactionLog(path / "live", destination="shop", segment_bytes=1 << 20)
    log.put(make_transactions(COUNT, rows=1))
    shutil.copytree(path / "live", path / "store")
    log.close()
    (segment,) = list_segments(path / "store")
    return Crashed(path / "store", segment, np.array(read_entries(segment)))


class Copy:
    """A copy of the crashed store that is reset before each opening, which is cheaper than a new folder."""

    def __init__(self, crashed: Crashed, path: Path) -> None:
        shutil.copytree(crashed.path, path)
        self.path = path
        self._files = {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}

    def reset(self, **changes: bytes | None) -> None:
        """Resets the copy with these bytes as ``segment``, ``index`` or ``checkpoint``; None for no such file."""
        for path in self.path.rglob("*"):
            if path.is_file() and path.relative_to(self.path) not in self._files:
                path.unlink()
        for name, data in self._files.items():
            kind = {".binlog": "segment", ".index": "index"}.get(name.suffix, name.name)
            wanted = changes.get(kind, data)
            path = self.path / name
            if wanted is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_bytes() != wanted:
                path.write_bytes(wanted)

    def reopen(self) -> None:
        TransactionLog(self.path, destination="shop", segment_bytes=1 << 20).close()

    def read(self) -> list[int]:
        """Returns the seqs that a reader gets; checks the bytes of each one by their checksums."""
        seqs: list[int] = []
        for segment in list_segments(self.path):
            entries = read_entries(segment)
            seqs += [int(seq) for seq in entries["seq"]]
        if seqs:
            selection = StoreReader(self.path).select(0, Limits())
            assert selection is not None and selection.transactions == len(seqs)
        return seqs


@pytest.fixture
def copy(crashed: Crashed, tmp_path: Path) -> Copy:
    return Copy(crashed, tmp_path / "copy")


def flipped(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1 << at % 8
    return bytes(changed)


@pytest.mark.rule("rocketmq-log-34", "rocketmq-log-35")
@pytest.mark.parametrize("acknowledged", range(COUNT + 1))
def test_the_log_cut_at_every_byte(crashed: Crashed, copy: Copy, acknowledged: int) -> None:
    """With so many transactions acknowledged, a prefix of whole ones is left, never fewer than these. If the cut reaches
    into them, an error says so, and nothing is changed."""
    data, index = crashed.data, index_path(crashed.segment).read_bytes()[: 128 * (acknowledged + 1)]
    promised = crashed.ends[acknowledged - 1] if acknowledged else 0
    for at in [*places(0, len(data), acknowledged), len(data)]:
        copy.reset(segment=data[:at], index=index)
        if at < promised:
            with pytest.raises(DamagedError, match=r"acknowledged transactions up to byte"):
                copy.reopen()
            assert copy.path.joinpath("segments", crashed.segment.name).read_bytes() == data[:at]
        else:
            copy.reopen()
            expected = crashed.seqs[: sum(end <= at for end in crashed.ends)]
            assert copy.read() == expected and len(expected) >= acknowledged, f"cut at {at}"


@pytest.mark.rule("rocketmq-log-33")
@pytest.mark.parametrize("acknowledged", [0, 2, COUNT])
def test_each_byte_of_the_log_flipped(crashed: Crashed, copy: Copy, acknowledged: int) -> None:
    data, index = crashed.data, index_path(crashed.segment).read_bytes()[: 128 * (acknowledged + 1)]
    first = int(crashed.entries["offset"][0])
    promised = crashed.ends[acknowledged - 1] if acknowledged else 0
    for at in places(0, len(data), acknowledged):
        copy.reset(segment=flipped(data, at), index=index)
        if at < promised:
            with pytest.raises((DamagedError, CdcError), match="segments"):
                copy.reopen()
        else:
            copy.reopen()
            kept = sum(end <= at for end in crashed.ends) if at >= first else 0
            assert copy.read() == crashed.seqs[:kept], f"flipped {at}"


@pytest.mark.rule("rocketmq-log-36")
def test_the_index_cut_at_every_byte(crashed: Crashed, copy: Copy) -> None:
    """The index is completed from the log: everything is there."""
    index = index_path(crashed.segment).read_bytes()
    for at in places(0, len(index), 0):
        copy.reset(index=index[:at])
        copy.reopen()
        assert copy.read() == crashed.seqs, f"cut at {at}"


def test_each_byte_of_the_index_flipped(crashed: Crashed, copy: Copy) -> None:
    index = index_path(crashed.segment).read_bytes()
    for at in places(0, len(index), 0):
        copy.reset(index=flipped(index, at))
        copy.reopen()
        assert copy.read() == crashed.seqs, f"flipped {at}"


def test_the_checkpoint_cut_and_flipped(crashed: Crashed, copy: Copy) -> None:
    """A checkpoint only saves time: a damaged one is ignored, and the opening verifies more."""
    note = (crashed.path / FILE_NAME).read_bytes()
    variants = [note[:at] for at in places(0, len(note), 0)] + [flipped(note, at) for at in places(0, len(note), 0)]
    for number, variant in enumerate(variants):
        with pytest.raises(DamagedError):
            parse_checkpoint(variant, "checkpoint")
        copy.reset(checkpoint=variant)
        copy.reopen()
        assert copy.read() == crashed.seqs, number
        assert parse_checkpoint((copy.path / FILE_NAME).read_bytes(), "").segment == crashed.segment.name


@pytest.mark.rule("rocketmq-log-37")
def test_after_a_clean_stop_a_cut_is_noticed_at_every_byte(crashed: Crashed, copy: Copy) -> None:
    """The sizes alone show it."""
    copy.reset()
    copy.reopen()
    (segment,) = list_segments(copy.path)
    data, index = segment.read_bytes(), index_path(segment).read_bytes()
    note = (copy.path / FILE_NAME).read_bytes()
    for at in places(0, len(data), 3):
        copy.reset(segment=data[:at], index=index, checkpoint=note, abort=None)
        with pytest.raises(DamagedError, match="acknowledged transactions up to byte"):
            copy.reopen()
    for at in places(0, len(index), 3):
        copy.reset(index=index[:at], checkpoint=note, abort=None)
        copy.reopen()
        assert copy.read() == crashed.seqs


def test_the_meta_file_cut_and_flipped_at_every_byte(tmp_path: Path) -> None:
    """The meta is read whole or refused: never in another state."""
    meta = FileMeta(tmp_path / "meta", "shop")
    meta.subscribe("apply", "shop")
    expires = datetime(2026, 11, 21, tzinfo=UTC)
    add_batch(
        meta,
        "apply",
        Outstanding(batch=1, first_seq=1, last_seq=5, after_seq=0, owner="o", token="t", expires=expires),
    )
    data = meta.file.read_bytes()
    state = parse(data, "meta")
    for at in places(0, len(data.rstrip()), 0):
        with pytest.raises(DamagedError):
            parse(data[:at], "meta")
        try:
            parsed = parse(flipped(data, at), "meta")
        except (DamagedError, VersionError):
            continue
        assert parsed == state, f"flipped {at}"  # a blank between two keys


def test_a_manifest_cut_at_every_byte(tmp_path: Path) -> None:
    data = (GOLDEN / "manifest-v1.json").read_bytes()
    assert isinstance(parse_manifest(data, "manifest"), Manifest)
    for at in places(0, len(data.rstrip()), 0):
        with pytest.raises(DamagedError):
            parse_manifest(data[:at], "manifest")
    assert json.loads(data)["version"] == 1


def test_whoever_reads_sees_a_prefix_while_nothing_is_mended(crashed: Crashed, copy: Copy) -> None:
    """Readers do not wait for a writer to repair: an index that is cut off anywhere shows its whole entries."""
    index = index_path(crashed.segment).read_bytes()
    segment = copy.path / "segments" / crashed.segment.name
    for at in places(128, len(index), 1):
        copy.reset(index=index[:at])
        assert [int(s) for s in IndexFile(segment).entries["seq"]] == crashed.seqs[: (at - 128) // 128]
