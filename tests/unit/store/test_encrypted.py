"""Encrypted stores: recovery, mixed and rotated keys, staged batches, and the bytes that a server and a standby get."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cdc.base.errors import CdcError, ConfigError, DamagedError
from cdc.batches.lease import exclusive
from cdc.batches.service import BatchService
from cdc.binlog import file
from cdc.cli.main import main
from cdc.config import DestinationConfig, load
from cdc.decode import DecodeOptions, decode_range, read
from cdc.disk.encryption import keys
from cdc.disk.encryption.container import HEADER_SIZE
from cdc.disk.encryption.read import content_size, header_of, open_content
from cdc.event_store.transaction_log import TransactionLog
from cdc.meta import open_meta
from cdc.server.files import read_bytes
from cdc.store.formats.layout import list_segments, segments_folder
from cdc.store.formats.prepared import PreparedTransaction, PreparedTransactions
from cdc.store.formats.segment_header import make_segment_header
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader
from cdc.store.recovery.salvage import salvage
from cdc.store.writer.log import RelayLog
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from cdc.testing.transactions import make_transactions
from tests.support.encryption import FIRST, SECOND, encrypted, use
from tests.support.standby import Standby, open_master
from tests.support.unit_batches import IDENTITY, make_config
from tests.support.unit_store import all_seqs, copy, fill

MARK = int.from_bytes(b"Ada!", "little")
"""A value whose bytes are looked for in files."""


def values(store: Path, **options: Any) -> list[int]:
    return [v for batch in read(store, table="shop.orders", **options) for v in batch.column("id").to_pylist()]


def put(path: Path, log: BinlogBuilder, **options: Any) -> None:
    filler = Filler(path, **options)
    filler.put(log)
    filler.close()


def holds(folder: Path, what: bytes = b"Ada!") -> list[str]:
    return [str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and what in p.read_bytes()]


def test_the_store_reads_as_if_it_were_not_encrypted(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(300):
        log.transaction("shop", "orders", [MARK] * (n % 7 + 1))
    put(tmp_path / "plain", log, segment_bytes=8192)
    with encrypted(tmp_path / "secret"):
        put(tmp_path / "secret", log, segment_bytes=8192)
        assert holds(tmp_path / "plain") and not holds(tmp_path / "secret")
        assert values(tmp_path / "secret") == values(tmp_path / "plain")
        assert all_seqs(tmp_path / "secret") == all_seqs(tmp_path / "plain")
        mine, theirs = (StoreReader(tmp_path / folder).select(0, Limits()) for folder in ("secret", "plain"))
        assert mine is not None and theirs is not None
        assert [(r.offset, r.length) for r in mine.ranges] == [(r.offset, r.length) for r in theirs.ranges]
        for segment, other in zip(list_segments(tmp_path / "secret"), list_segments(tmp_path / "plain"), strict=True):
            with open_content(segment) as file:
                assert file.read() == other.read_bytes()
            assert stat.S_IMODE(segment.stat().st_mode) == 0o600


def test_a_clean_stop_and_a_crash(tmp_path: Path) -> None:
    with encrypted(tmp_path):
        log = fill(tmp_path / "store", 20)
        log.transaction("shop", "orders", [1000])
        put(tmp_path / "store", log)
        (tmp_path / "store" / "abort").touch()
        (tmp_path / "store" / "checkpoint").unlink()
        log.transaction("shop", "orders", [1001])
        put(tmp_path / "store", log)
        assert values(tmp_path / "store")[-2:] == [1000, 1001]
        assert len(list_segments(tmp_path / "store")) == 1


def test_a_segment_that_is_cut_anywhere(tmp_path: Path, seed: int) -> None:
    """After a kill any part of what was not acknowledged may be missing. Then nothing whole is lost, and more can be
    appended."""
    with encrypted(tmp_path):
        log, ends = BinlogBuilder(), []
        filler = Filler(tmp_path / "store")
        for n in range(6):
            log.transaction("shop", "orders", [n] * 50)
            filler.put(log)
            (segment,) = list_segments(tmp_path / "store")
            ends.append(segment.stat().st_size)
        filler.close()
        for name in ("checkpoint", f"segments/{segment.name}.index"):
            (tmp_path / "store" / name).unlink()
        size = segment.stat().st_size
        for cut in {HEADER_SIZE + 200, *random.Random(seed).sample(range(HEADER_SIZE + 300, size), 40), *ends}:
            copied = copy(tmp_path / "store", tmp_path / "again")
            os.truncate(segments_folder(copied) / segment.name, cut)
            put(copied, log)
            assert values(copied) == [n for n in range(6) for _ in range(50)], cut


@pytest.mark.parametrize("flip", ["header", "first", "middle", "last"])
def test_damage_to_acknowledged_transactions_is_named(tmp_path: Path, flip: str) -> None:
    with encrypted(tmp_path):
        log = fill(tmp_path / "store", 40)
        (segment,) = list_segments(tmp_path / "store")
        data = bytearray(segment.read_bytes())
        at = {"header": 100, "first": HEADER_SIZE + 50, "middle": len(data) // 2, "last": len(data) - 5}[flip]
        data[at] ^= 4
        segment.write_bytes(data)
        (tmp_path / "store" / "checkpoint").unlink()
        with pytest.raises(DamagedError, match=str(segment)):
            Filler(tmp_path / "store")
        with pytest.raises(DamagedError, match=str(segment)):
            values(tmp_path / "store")
        assert main(["inspect", str(tmp_path / "store")]) == 2
        assert main(["inspect", str(segment)]) == 2
        assert segment.read_bytes() == data
        assert log.gno == 40


def test_a_loss_can_be_accepted(tmp_path: Path) -> None:
    with encrypted(tmp_path):
        log = BinlogBuilder()
        filler = Filler(tmp_path / "store")
        for n in range(20):  # each in a frame of its own
            log.transaction("shop", "orders", [n] * 200)
            filler.put(log)
        filler.close()
        (segment,) = list_segments(tmp_path / "store")
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 1
        segment.write_bytes(data)
        (lost,) = salvage(tmp_path / "store", segment.name)
        assert (lost.how, lost.transactions) == ("passed over", 1)
        assert len(values(tmp_path / "store")) == 19 * 200
        reader, after, rows = StoreReader(tmp_path / "store"), 0, 0
        while (selection := reader.select(after, Limits())) is not None:
            for byte_range in selection.ranges:
                rows += sum(
                    len(batch)
                    for batch in decode_range(
                        byte_range.path, byte_range.offset, byte_range.length, table="shop.orders"
                    )
                )
            after = selection.last_seq
        assert rows == 19 * 200


def test_encryption_is_switched_on_and_off_and_the_key_is_changed(tmp_path: Path) -> None:
    store, made = tmp_path / "store", make_transactions(8, rows=2)
    ids: list[str | None] = []
    for n, (current, old) in enumerate([(None, ()), (FIRST, ()), (SECOND, (FIRST,)), (None, (FIRST, SECOND))]):
        with encrypted(store, current, *old):
            for part in (made[2 * n : 2 * n + 1], made[2 * n + 1 : 2 * n + 2]):  # over two openings
                log = TransactionLog(store, destination="shop", segment_bytes=1 << 30)
                log.put(part)
                log.close()
            ids.append(None if current is None else keys.WrappingKey.of(current).id)
            headers = [header_of(segment) for segment in list_segments(store)]
            assert [None if header is None else header.key_id for header in headers] == ids
            assert all_seqs(store) == [transaction.seq for transaction in made[: 2 * n + 2]]
            assert sum(len(batch) for batch in read(store, table="shop.orders")) == 2 * (2 * n + 2)
    with encrypted(store, SECOND), pytest.raises(ConfigError, match=r"Add that key to store\.encryption\.old_keys"):
        list(read(store, table="shop.orders"))


def test_the_wrong_key_stops_the_writer(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with encrypted(store):
        fill(store, 3)
        before = {p: p.read_bytes() for p in segments_folder(store).iterdir()}
    for current in (SECOND, None):
        with encrypted(store, current):
            with pytest.raises(ConfigError) as told:
                Filler(store)
            assert str(told.value).startswith(f"{list_segments(store)[0]}: is encrypted with the key ")
            assert not told.value.retryable
    assert {p: p.read_bytes() for p in segments_folder(store).iterdir()} == before


def test_a_statement_that_is_marked_ended_later(tmp_path: Path) -> None:
    """The last row event of a statement gets its flag although it is written already; transactions before it, in the
    same append, are not written a second time."""
    with encrypted(tmp_path):
        log = BinlogBuilder()
        log.transaction("shop", "orders", [1])
        log.gtid()
        log.query("BEGIN")
        log.table_map("shop", "orders")
        whole = len(b"".join(log.events[1:6]))
        rows = log.rows("shop", "orders", list(range(30_000)), end=False)
        store = RelayLog(tmp_path / "store", destination="shop", segment_bytes=1 << 30)
        at = store.begin(0, "binlog.000001", 4, log.events[0], 1)
        start = at + len(b"".join(log.events[1:-1]))
        store.append(memoryview(b"".join(log.events[1:])), at + whole)
        segment = tmp_path / "store" / "segments" / "000-0000001-00000000004.binlog"
        with open_content(segment) as file:
            before = file.read()
        crc = store.set_statement_end(start, len(rows))
        with open_content(segment) as file:
            after = file.read()
        assert after[start + 25] == before[start + 25] | 1 and int.from_bytes(after[-4:], "little") == crc
        assert after[: start + 25] == before[: start + 25] and after[start + 26 : -4] == before[start + 26 : -4]
        store.close()


def test_prepared_transactions(tmp_path: Path) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [MARK] * 10)
    header = make_segment_header(log.events[0], "binlog.000001", 4, 1)
    with encrypted(tmp_path):
        with closing(PreparedTransactions(tmp_path, 0)) as prepared:
            prepared_transaction = PreparedTransaction("x'61',x'',1", 5, 0)
            prepared.put_aside(prepared_transaction, header, log.events[1:])
            prepared.sync()
        assert not holds(tmp_path)
        with closing(PreparedTransactions(tmp_path, 10)) as prepared:
            (entry,) = prepared.pending
            with open_content(prepared.path(entry)) as file:
                assert file.read() == header + b"".join(log.events[1:])
            assert stat.S_IMODE(prepared.path(entry).stat().st_mode) == 0o600


# --- copies


def configured(folder: Path, **encryption: Any) -> DestinationConfig:
    file = make_config(folder).file
    document = yaml.safe_load(file.read_text())
    document["store"] |= {"stage": f"file://{folder}/stage", "encryption": encryption}
    file.write_text(yaml.safe_dump(document))
    return load(file)


@pytest.fixture
def config(tmp_path: Path) -> Any:
    (tmp_path / "conf").mkdir(exist_ok=True)
    (tmp_path / "conf" / "store.key").write_text(FIRST.hex() + "\n")
    with keys.isolated():
        yield configured(tmp_path, key_file="store.key")


def test_staged_batches(config: DestinationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = BinlogBuilder()
    for n in range(60):
        log.transaction("shop", "orders" if n % 10 == 0 else "items", [MARK] * 3000)
    put(config.store.path, log)
    open_meta(config).bind_source(IDENTITY)
    with exclusive(config):
        lease = BatchService(config).get("a")
    assert lease is not None and FIRST.hex() not in lease.manifest_path.read_text()
    (byte_range,) = lease.manifest.ranges
    assert byte_range.path.endswith(".sealed")
    assert not holds(tmp_path / "stage") and not holds(config.store.path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    for mask in (1, 2, 3):  # a part of the file, and the whole
        for table in ("shop.orders", "shop.items"):
            rows = sum(
                len(batch)
                for batch in decode_range(
                    byte_range.path,
                    byte_range.offset,
                    byte_range.length,
                    table=table,
                    options=DecodeOptions(table_mask=mask),
                )
            )
            bit = 1 if table == "shop.orders" else 2
            wanted = read(config.store.path, table=table, options=DecodeOptions(upto_seq=lease.manifest.last_seq))
            assert rows == (sum(len(batch) for batch in wanted) if mask & bit else 0)
    path = Path(byte_range.path.removeprefix("file://"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamagedError):
        list(decode_range(byte_range.path, byte_range.offset, byte_range.length, table="shop.items"))


def test_a_server_hands_out_what_it_decrypts(tmp_path: Path) -> None:
    log = BinlogBuilder()
    for n in range(50):
        log.transaction("shop", "orders", [n] * 1000)
    put(tmp_path / "plain", log)
    with encrypted(tmp_path / "secret"):
        put(tmp_path / "secret", log)
        (segment,), (plain,) = list_segments(tmp_path / "secret"), list_segments(tmp_path / "plain")
        want = plain.read_bytes()
        assert content_size(segment) == len(want) < segment.stat().st_size
        for start, stop in ((0, 4096), (100_000, 200_000), (len(want) - 10, len(want))):
            assert read_bytes(segment, start, stop) == want[start:stop]
        with pytest.raises(DamagedError, match=f"has {len(want)} bytes"):
            read_bytes(segment, 0, len(want) + 1)


@pytest.mark.parametrize("theirs", [FIRST, None])
def test_a_standby_encrypts_with_its_own_key(tmp_path: Path, theirs: bytes | None) -> None:
    """The bytes travel as those of a binlog file, whether the master encrypts its store or not."""
    log = BinlogBuilder()
    with keys.isolated():
        use(tmp_path / "master", theirs)
        use(tmp_path / "standby", SECOND)
        filler = Filler(tmp_path / "master", segment_bytes=20_000)
        master = open_master(filler.store, role="async_master")
        standby = Standby(tmp_path / "standby", master.address)
        for n in range(30):
            log.transaction("shop", "orders", [MARK - n] * 500)
            filler.put(log)
        deadline = time.monotonic() + 20
        while all_seqs(tmp_path / "standby") != all_seqs(tmp_path / "master") and time.monotonic() < deadline:
            time.sleep(0.02)
        standby.close()
        master.close()
        filler.close()
        assert not holds(tmp_path / "standby")
        assert values(tmp_path / "standby") == values(tmp_path / "master")
        for segment in list_segments(tmp_path / "standby"):
            header = header_of(segment)
            assert header is not None and header.key_id == keys.WrappingKey.of(SECOND).id
        # The take-over: the former standby goes on, and the former master follows it.
        log.transaction("shop", "orders", [7])
        put(tmp_path / "standby", log, segment_bytes=20_000)
        assert values(tmp_path / "standby")[-1] == 7


# --- commands


def test_decode_and_inspect(
    config: DestinationConfig, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    log = BinlogBuilder()
    log.transaction("shop", "orders", [1, 2, 3])
    put(config.store.path, log)
    (segment,) = list_segments(config.store.path)
    conf = ["--conf-dir", str(tmp_path / "conf")]
    with keys.isolated():
        for command in (["decode", str(segment)], ["inspect", str(segment)], ["inspect", str(config.store.path)]):
            assert main([*conf, *command]) == 2
            told = capsysbinary.readouterr().err.decode()
            assert "is encrypted with the key" in told and "--decrypt" in " ".join(told.split())
    with keys.isolated():
        assert main([*conf, "decode", "--decrypt", str(segment)]) == 0
        assert capsysbinary.readouterr().out.count(b"\n") == 3
    with keys.isolated():
        assert (
            main([*conf, "inspect", "--decrypt", "--plain", str(tmp_path / "copy.binlog"), str(segment), "--json"]) == 0
        )
        assert keys.WrappingKey.of(FIRST).id.encode() in capsysbinary.readouterr().out
    with keys.isolated():
        assert main(["decode", str(tmp_path / "copy.binlog")]) == 0
        assert capsysbinary.readouterr().out.count(b"\n") == 3
        assert stat.S_IMODE((tmp_path / "copy.binlog").stat().st_mode) == 0o600
        assert main([*conf, "inspect", "--decrypt", "--plain", str(tmp_path / "copy.binlog"), str(segment)]) == 2
        assert main([*conf, "inspect", "--plain", str(tmp_path / "new"), str(segment)]) == 2


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_rows_that_are_written_to_a_file_are_for_their_user(tmp_path: Path, umask: int) -> None:
    fill(tmp_path / "store", 3)
    before = os.umask(umask)
    try:
        assert (
            main(["decode", str(tmp_path / "store"), "--table", "shop.items", "--out", str(tmp_path / "f.parquet")])
            == 0
        )
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f.parquet").stat().st_mode) == 0o600


# --- configuration


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key_env": "A", "key_file": "b"}, "key_env and key_file contradict each other"),
        ({"key_command": []}, "key_command: must not be empty"),
        ({"old_keys": [{}]}, "needs one of env, file, command"),
        ({"old_keys": [{"env": "A", "file": "b"}]}, "env and file contradict each other"),
    ],
)
def test_contradictions_are_refused(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        configured(tmp_path, **given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"key_env": "NO_SUCH_KEY"}, "store.encryption.key_env: the environment variable NO_SUCH_KEY is not set"),
        ({"key_file": "missing"}, "store.encryption.key_file: .*/conf/missing cannot be read"),
        ({"key_command": ["false"]}, "store.encryption.key_command: false ended with code 1 and did not print the key"),
        ({"key_command": ["echo", "abc"]}, "store.encryption.key_command: the key is not 64 hexadecimal digits"),
        ({"old_keys": [{"command": ["echo", "00"]}]}, r"store.encryption.old_keys.0.command: the key is not 64 hex"),
    ],
)
def test_a_key_that_cannot_be_had(tmp_path: Path, given: dict[str, Any], told: str) -> None:
    with keys.isolated():
        config = configured(tmp_path, **given)
        assert keys.known() == ()
        with pytest.raises(CdcError, match=told) as error:
            keys.find("00", "x") if "old_keys" in given else keys.writing_key(config.store.path / "x")
        assert error.value.retryable == ("false" in str(given))


def test_keys_from_a_variable_a_file_and_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_KEY", FIRST.hex())
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "k").write_text(f"{FIRST.hex()}\n")
    for given in ({"key_env": "SHOP_KEY"}, {"key_file": "k"}, {"key_command": ["echo", FIRST.hex()]}):
        with keys.isolated():
            config = configured(tmp_path, **given)
            writing_key = keys.writing_key(config.store.path / "segments" / "x")
            assert writing_key is not None and writing_key.secret == FIRST and FIRST.hex() not in repr(writing_key)
            staged = keys.writing_key(f"file://{tmp_path}/stage/shop/apply/000000000001-00000000/x")
            assert staged == writing_key
            assert keys.writing_key(tmp_path / "elsewhere") is None
        shutil.rmtree(tmp_path / "stage", ignore_errors=True)


@pytest.mark.parametrize("window", [5000, 65536, 100_000])
def test_a_scan_decrypts_a_window_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
    """Windows end anywhere: in the header of an event, and in events that are larger than one."""
    monkeypatch.setattr(file, "_WINDOW_BYTES", window)
    log = BinlogBuilder()
    for n in range(60):
        log.transaction("shop", "orders", list(range(n * n * 10)))
    with encrypted(tmp_path / "secret"):
        for name in ("plain", "secret"):
            put(tmp_path / name, log)
        (secret,), (plain,) = list_segments(tmp_path / "secret"), list_segments(tmp_path / "plain")
        for kept in (None, file.map_file(secret)):
            scanned, want = file.scan(secret, mapped=kept), file.scan(plain)
            assert (scanned.end, scanned.size, scanned.damage) == (want.end, want.size, None)
            assert np.array_equal(scanned.rows, want.rows) and len(want.rows) == 60
        assert kept is not None and kept.buf.tobytes() == plain.read_bytes()
