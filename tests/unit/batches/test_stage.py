"""Staging: the copies that executors read when they do not see the store's disk.

``file://`` is real, ``s3://`` a fake S3 in this process, and ``memory://`` that of fsspec. HDFS is not tested.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import jsonschema
import numpy as np
import pytest
import yaml

from cdc.base.errors import ConfigError, DamagedError, StorageError
from cdc.batches import stage as stage_module
from cdc.batches.lease import Lease
from cdc.batches.manifest_files import load_manifest
from cdc.batches.service import BatchService
from cdc.batches.stage import Stage
from cdc.binlog.file import BinlogFile
from cdc.binlog.sql.schemas import Schemas, TableSchema
from cdc.cli.main import main
from cdc.config import DestinationConfig, load
from cdc.decode import DecodeOptions, decode_range, layouts
from cdc.decode.transactions import open_range
from cdc.lake.rows.input_splits import SPLIT_BYTES, input_splits
from cdc.meta import open_meta
from cdc.store.formats.layout import list_segments, schemas_folder
from cdc.store.reader import staged
from cdc.store.reader.batch_builder import Limits, Range
from cdc.store.reader.staged import is_uri, local_copy, staged_entries
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.s3 import s3_server
from tests.support.unit_batches import IDENTITY, make_config

OWNER = "airflow:apply_shop"
SCHEMA = Path(__file__).parents[3] / "docs" / "formats" / "manifest.schema.json"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server("towpath") as uri:
        yield uri


@pytest.fixture(params=["file", "memory", "s3"])
def stage_uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/stage"
        return
    if request.param == "s3":
        yield f"{request.getfixturevalue('bucket')}/{tmp_path.name}/stage"
        return
    uri = "memory://towpath-stage"
    yield uri
    fs, path = fsspec.url_to_fs(uri)
    if fs.exists(path):
        fs.rm(path, recursive=True)


@pytest.fixture
def config(tmp_path: Path, stage_uri: str) -> DestinationConfig:
    return configure(tmp_path, stage_uri)


def configure(folder: Path, stage_uri: str) -> DestinationConfig:
    """A configuration with staging, and a store of 40 transactions (one a DDL) in several segments."""
    file = make_config(folder).file
    document = yaml.safe_load(file.read_text())
    document["store"]["stage"] = stage_uri
    document["batch"]["max_transactions"] = 15
    file.write_text(yaml.safe_dump(document))
    config = load(file)
    open_meta(config).bind_source(IDENTITY)
    choose, log = random.Random(20261124), BinlogBuilder()
    for n in range(40):
        if n == 20:
            log.ddl("CREATE TABLE x (id INT)")
        else:
            log.transaction("shop", "orders" if n % 2 else "items", [n] * choose.randrange(1, 900))
    filler = Filler(config.store.path, segment_bytes=65536)
    filler.put(log)
    filler.close()
    assert len(list_segments(config.store.path)) > 1
    Schemas(tables={"shop.orders": TableSchema(columns=(), primary_key=())}).save(
        schemas_folder(config.store.path) / "0.json"
    )
    return config


def get(service: BatchService, **given: Any) -> Lease:
    lease = service.get(OWNER, **given)
    assert lease is not None
    return lease


def staged_files(config: DestinationConfig) -> list[str]:
    """Returns all files below the staging URI."""
    assert config.store.stage is not None
    fs, path = fsspec.url_to_fs(config.store.stage)
    return sorted(fs.find(path)) if fs.exists(path) else []


def rows(ranges: Any) -> list[Any]:
    """Decodes ranges; returns their rows."""
    return [
        row
        for part in ranges
        for batch in decode_range(part.path, part.offset, part.length, table="shop.orders")
        for row in batch.to_pylist()
    ]


def test_rows_are_the_same_without_the_store(config: DestinationConfig) -> None:
    plain = BatchService(config.model_copy(update={"store": config.store.model_copy(update={"stage": None})}))
    lease = plain.get(OWNER, subscriber="plain")
    assert lease is not None
    wanted, layouts_before = rows(lease.manifest.ranges), layouts(lease.manifest.ranges, lease.manifest.tables)
    staged = get(BatchService(config)).manifest
    moved = config.store.path.rename(config.store.path.with_name("gone"))
    assert all(is_uri(part.path) and part.path.startswith(str(config.store.stage)) for part in staged.ranges)
    assert len(wanted) > 100
    assert rows(staged.ranges) == wanted
    assert layouts(staged.ranges, staged.tables) == layouts_before
    assert staged.schema_path is not None
    with local_copy(staged.schema_path) as path:
        assert Schemas.load(path).tables.keys() == {"shop.orders"}
    assert (staged.transactions, staged.bytes) == (lease.manifest.transactions, lease.manifest.bytes)
    moved.rename(config.store.path)


def test_a_staged_range_is_a_segment_of_its_own(config: DestinationConfig) -> None:
    """Programs for binlog files can read it: magic, format description, rotate event, whole transactions."""
    manifest = get(BatchService(config)).manifest
    transactions = 0
    for part in manifest.ranges:
        with local_copy(part.path) as path:
            file = BinlogFile.open(path)
            assert file.damage is None
            assert path.stat().st_size == part.offset + part.length
            assert hashlib.sha256(path.read_bytes()).hexdigest() == part.sha256
            index = staged_entries(part.path, part.offset, part.length)
            assert file.entries["seq"].tolist() == index["seq"].tolist()
            assert file.entries["offset"].tolist() == index["offset"].tolist()
            transactions += len(index)
        assert not path.exists(), "the copy is gone"
    assert transactions == manifest.transactions


def test_the_manifest_fits_its_published_schema(config: DestinationConfig) -> None:
    schema = json.loads(SCHEMA.read_text())
    service = BatchService(config)
    staged, plain = get(service), get(service, ahead=True)
    service.ack(staged.batch, staged.token, results=[{"table": "shop.orders", "inserted": 3, "delta_version": 1}])
    for lease in (staged, plain):
        jsonschema.validate(json.loads(lease.manifest_path.read_text()), schema)
    assert load_manifest(plain.manifest_path) == plain.manifest


def test_inspect_verifies_staged_ranges(config: DestinationConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(get(BatchService(config)).manifest_path)
    assert main(["inspect", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    flip(config, next(file for file in staged_files(config) if file.endswith(".binlog")))
    assert main(["inspect", path, "--json"]) == 2
    assert "fails its checksum (SHA-256)" in capsys.readouterr().err


def flip(config: DestinationConfig, file: str, at: int = -5) -> None:
    """Changes one byte of a staged file."""
    fs, _ = fsspec.url_to_fs(str(config.store.stage))
    data = bytearray(fs.cat(file))
    data[at] ^= 1
    fs.pipe(file, bytes(data))


def test_damage_is_found_and_the_next_batch_is_whole(config: DestinationConfig) -> None:
    service = BatchService(config)
    lease = get(service)
    (part, *_) = lease.manifest.ranges
    for name in [f for f in staged_files(config) if f.endswith(".binlog")]:
        flip(config, name)
    with pytest.raises(DamagedError, match=r"fails its checksum \(SHA-256\). Roll the batch back"):
        rows([part])
    for name in [f for f in staged_files(config) if f.endswith(".index")]:
        flip(config, name, at=300)
    with pytest.raises(DamagedError, match=r"\.binlog\.index: entry 1 .* fails its checksum"):
        staged_entries(part.path, part.offset, part.length)
    fs, path = fsspec.url_to_fs(str(config.store.stage))
    fs.rm(path, recursive=True)
    with pytest.raises(DamagedError, match="this staged file is missing"):
        rows([part])
    service.rollback(lease.batch, lease.token)
    next_lease = get(service)
    assert (next_lease.batch, next_lease.manifest.last_seq) == (2, lease.manifest.last_seq)
    assert len(rows(next_lease.manifest.ranges)) > 0


def test_a_bucket_that_is_missing_is_not_made(tmp_path: Path, bucket: str) -> None:
    import s3fs

    config = configure(tmp_path, "s3://nowhere/stage")
    with pytest.raises(ConfigError, match=r"s3://nowhere/stage/.* cannot be written: .*Make the bucket, or correct"):
        get(BatchService(config))
    assert s3fs.S3FileSystem(skip_instance_cache=True).ls("") == [bucket.removeprefix("s3://")]


@pytest.mark.parametrize("end", ["ack", "rollback"])
def test_copies_are_removed_when_the_batch_ends(config: DestinationConfig, end: str) -> None:
    service = BatchService(config)
    first, second = get(service), get(service, ahead=True)
    folders = {file.rpartition("/")[0] for file in staged_files(config)}
    assert len(folders) == 2
    if end == "ack":
        service.ack(first.batch, first.token)
        assert {file.rpartition("/")[0] for file in staged_files(config)} < folders
        assert len(rows(second.manifest.ranges)) > 0, "the other batch's copy is still there"
        service.ack(second.batch, second.token)
    else:
        assert service.rollback(first.batch, first.token) == [1, 2]
    assert staged_files(config) == []


def test_the_same_batch_again_is_the_same_copy(config: DestinationConfig) -> None:
    first, repeated = get(BatchService(config)), get(BatchService(config))
    assert repeated.manifest == first.manifest
    assert len({file.rpartition("/")[0] for file in staged_files(config)}) == 1


def test_subscribers_do_not_sweep_each_others_copies(config: DestinationConfig) -> None:
    service = BatchService(config)
    mine, audit = get(service), get(service, subscriber="audit")
    service.ack(mine.batch, mine.token)
    assert len(rows(audit.manifest.ranges)) > 0


def test_a_copy_that_fails_leaves_no_batch_and_no_file(
    config: DestinationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, written = stage_module._write, []

    def full(uri: str, data: Iterator[bytes]) -> None:
        written.append(uri)
        if len(written) == 3:
            raise StorageError("no space left on device", place=uri)
        whole(uri, data)

    monkeypatch.setattr(stage_module, "_write", full)
    service = BatchService(config)
    with pytest.raises(StorageError, match="no space left"):
        service.get(OWNER)
    assert (service.outstanding(), staged_files(config)) == ([], [])
    assert get(service).batch == 1


def test_the_slower_process_removes_its_copy(config: DestinationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = BatchService(config), BatchService(config)
    copy = Stage.copy

    def copy_slowly(self: Stage, *given: Any) -> Any:
        done = copy(self, *given)
        if self is slow._stage and not fast.outstanding():
            get(fast)
        return done

    monkeypatch.setattr(Stage, "copy", copy_slowly)
    lease = get(slow)
    assert lease.batch == 1, "the batch that the other one made: the same owner's"
    assert len({file.rpartition("/")[0] for file in staged_files(config)}) == 1
    assert len(rows(lease.manifest.ranges)) > 0


def test_a_large_transaction_is_one_file_and_others_are_split(config: DestinationConfig) -> None:
    stage = Stage(str(config.store.stage), "shop", file_bytes=3000)
    segment = list_segments(config.store.path)[0]
    chosen = BatchService(config)._reader.select(0, stage_limits())
    assert chosen is not None
    ranges = stage.copy("apply", 1, [r for r in chosen.ranges if r.path == segment], None).ranges
    lengths = [len(staged_entries(part.path, part.offset, part.length)) for part in ranges]
    assert len(ranges) > 3 and 1 in lengths
    for part, count in zip(ranges, lengths, strict=True):
        assert part.length <= 3000 or count == 1
    assert sum(part.length for part in ranges) == sum(r.length for r in chosen.ranges if r.path == segment)


def stage_limits() -> Any:
    from cdc.store.reader.batch_builder import Limits

    return Limits()


class Fetched:
    """Counts the bytes of segments, without indexes, that are read from the staging URI."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        whole, runs = staged._fetch, staged._fetch_runs

        def fetch(uri: str, target: Path, sha256: str | None) -> None:
            whole(uri, target, sha256)
            self.bytes += target.stat().st_size if sha256 is not None else 0

        def fetch_runs(uri: str, target: Path, wanted: list[tuple[int, int]], size_bytes: int) -> None:
            runs(uri, target, wanted, size_bytes)
            self.bytes += sum(stop - start for start, stop in wanted)

        monkeypatch.setattr(staged, "_fetch", fetch)
        monkeypatch.setattr(staged, "_fetch_runs", fetch_runs)


def test_a_task_reads_only_transactions_of_its_table(
    config: DestinationConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has small transactions of ``items`` between large ones of ``orders``, then ``orders`` alone."""
    monkeypatch.setattr(staged, "_GAP_BYTES", 100)
    shutil.rmtree(config.store.path)
    log, filler = BinlogBuilder(), Filler(config.store.path)
    for n in range(30):
        log.transaction("shop", "orders", list(range(2000)))
        if n < 10:
            log.transaction("shop", "items", [n])
    filler.put(log)
    filler.close()
    limits = Limits()
    plain = BatchService(config.model_copy(update={"store": config.store.model_copy(update={"stage": None})}))
    unstaged = get(plain, subscriber="plain", limits=limits).manifest
    monkeypatch.setattr(Stage.__init__, "__kwdefaults__", {"file_bytes": 40_000})
    manifest = get(BatchService(config), limits=limits).manifest
    assert manifest.table_bits == unstaged.table_bits == {"shop.orders": 0, "shop.items": 1}
    assert len(manifest.ranges) > 3
    fetched = Fetched(monkeypatch)
    for table, share in (("shop.items", 0.02), ("shop.orders", 1.5)):
        wanted = read_splits(input_splits(unstaged.ranges, 0, SPLIT_BYTES, table), table)
        fetched.bytes = 0
        splits = input_splits(manifest.ranges, 0, SPLIT_BYTES, table, manifest.table_mask(table))
        assert fetched.bytes == 0, "the driver needs indexes only"
        assert read_splits(splits, table) == wanted
        assert len(wanted) == {"shop.items": 10, "shop.orders": 60_000}[table]
        assert fetched.bytes < share * manifest.bytes
        transactions = sum(
            len(open_range(split.path, split.offset, split.length, split.table_mask).entries) for split in splits
        )
        assert transactions == {"shop.items": 10, "shop.orders": 30}[table]
    assert len(input_splits(manifest.ranges, 0, SPLIT_BYTES, "shop.items", 2)) < len(manifest.ranges)


def read_splits(splits: Any, table: str) -> list[Any]:
    return [
        (row["_seq"], row["_row"], row["id"])
        for split in splits
        for batch in decode_range(
            split.path, split.offset, split.length, table=table, options=DecodeOptions(table_mask=split.table_mask)
        )
        for row in batch.to_pylist()
    ]


def test_damage_in_a_part_that_is_fetched_is_found(config: DestinationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged, "_GAP_BYTES", 0)
    manifest = get(BatchService(config)).manifest
    mask = manifest.table_mask("shop.items")
    splits = input_splits(manifest.ranges, 0, SPLIT_BYTES, "shop.items", mask)
    assert read_splits(splits, "shop.items")
    entries = staged_entries(splits[0].path, splits[0].offset, splits[0].length)
    (first, *_) = entries[(entries["table_mask"] & np.uint64(mask or 0)) != 0]
    fs, path = fsspec.url_to_fs(splits[0].path)
    flip(config, path, at=int(first["offset"]) + int(first["length"]) // 2)
    with pytest.raises(DamagedError, match="checksum"):
        read_splits(splits, "shop.items")
    data = fs.cat(path)
    fs.pipe(path, data[: int(first["offset"]) + 10])
    with pytest.raises(DamagedError, match=r"shorter than its index says|checksum"):
        read_splits(splits, "shop.items")


def test_a_manifest_without_bits_is_read_as_before(config: DestinationConfig) -> None:
    manifest = get(BatchService(config)).manifest
    older = [part.model_copy(update={"table_bits": None}) for part in manifest.ranges]
    with_bits = read_splits(
        input_splits(manifest.ranges, 0, SPLIT_BYTES, "shop.items", manifest.table_mask("shop.items")), "shop.items"
    )
    assert with_bits and read_splits(input_splits(older, 0, SPLIT_BYTES, "shop.items", None), "shop.items") == with_bits


# --- with SIGKILL, on real files -------------------------------------------------------------------------------------


def get_and_end(config: DestinationConfig, seed: int) -> None:
    service, choose = BatchService(config), random.Random(seed)
    while True:
        lease = service.get(OWNER)
        if lease is None:
            os._exit(0)
        if choose.random() < 0.6:
            service.rollback(lease.batch, lease.token)
        else:
            service.ack(lease.batch, lease.token)


def test_copies_of_a_killed_get_are_removed_by_the_next(tmp_path: Path) -> None:
    """After a kill at any moment, one get leaves the whole copy of the outstanding batch, and nothing else."""
    seed = 20261125
    print(f"seed {seed}")
    config, moments, leftovers = configure(tmp_path, f"file://{tmp_path}/stage"), random.Random(seed), 0
    fork = get_context("fork")
    kept = tmp_path / "kept"
    shutil.copytree(config.meta.path, kept)
    for kill in range(12):
        process = fork.Process(target=get_and_end, args=(config, seed + kill))
        process.start()
        if kill % 2:  # as soon as a copy exists, however slow the machine is
            while process.is_alive() and not staged_files(config):
                time.sleep(0.001)
        else:
            time.sleep(moments.uniform(0.02, 0.25))
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        leftovers += len({file.rpartition("/")[0] for file in staged_files(config)})
        service = BatchService(config)
        lease = service.get(OWNER)
        if lease is None:  # all is acked: begin again
            assert staged_files(config) == []
            shutil.rmtree(config.meta.path)
            shutil.copytree(kept, config.meta.path)
            continue
        folders = {file.rpartition("/")[0] for file in staged_files(config)}
        assert folders == {part.path.removeprefix("file://").rpartition("/")[0] for part in lease.manifest.ranges}
        total = sum(len(staged_entries(p.path, p.offset, p.length)) for p in lease.manifest.ranges)
        assert total == lease.manifest.transactions
        rows(lease.manifest.ranges)
    assert leftovers > 0, "no kill fell into a get"


# --- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["/shared/stage", "file://stage", "stage", "s3://", ""])
def test_an_invalid_uri_is_refused(tmp_path: Path, stage: str) -> None:
    with pytest.raises(
        ConfigError, match=r"store.stage.*is not a URI; write file:///shared/stage or s3://bucket/stage"
    ):
        configure(tmp_path, stage)


def test_the_stage_must_be_outside_store_and_tables(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store.stage .* lies inside store.path"):
        configure(tmp_path, f"file://{tmp_path}/shop/store/stage")


def test_an_unknown_protocol_is_an_error_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"nosuch://.*cannot be used: Protocol not known: nosuch"):
        BatchService(configure(tmp_path, "nosuch://x/stage")).get(OWNER)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(
        ConfigError, match=r"needs the package fsspec, which is not installed. Install towpath\[stage\]"
    ):
        Stage("memory://x", "shop").copy("apply", 1, [Range(tmp_path, 0, 0)], tmp_path / "conf" / "shop.yaml")


def test_a_name_without_a_checksum_is_refused() -> None:
    with pytest.raises(DamagedError, match="its name holds no SHA-256"), local_copy("memory://x/000000.binlog"):
        pass
