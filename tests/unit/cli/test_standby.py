"""`cdc standby`, its configuration, and how capture and status use it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.base.errors import ConfigError, UsageError
from cdc.capture import Capture, replication
from cdc.cli.main import main
from cdc.config import DestinationConfig, parse
from cdc.copies.standby.follower import Follower
from cdc.copies.standby.role import read_epoch
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, free_port
from cdc.testing.transactions import make_transactions
from tests.support.standby import SECRET, Standby, configure, open_master


def config_of(folder: Path, standby: str, *, flush: str = "sync") -> DestinationConfig:
    file = configure(folder, standby, flush=flush)
    return parse(file.read_text(), file)


def test_the_section(tmp_path: Path) -> None:
    assert config_of(tmp_path, "{}").store.standby.role == "none"
    standby = config_of(
        tmp_path,
        "{role: standby, master: 'db.example:4100', listen: '10.0.0.8:4100', timeout_s: 2s, secret_file: s.key}",
    ).store.standby
    assert (standby.role, standby.timeout_s) == ("standby", 2.0)
    assert standby.secret_file == tmp_path / "conf" / "s.key"


@pytest.mark.parametrize(
    ("section", "flush", "what"),
    [
        ("{role: slave}", "sync", r"store\.standby\.role.*slave"),
        ("{role: standby}", "sync", "needs master; add master: host:port"),
        ("{role: sync_master}", "sync", "needs listen; add listen: host:port"),
        ("{role: async_master, listen: '4100'}", "sync", "not an address; write host:port"),
        ("{role: sync_master, listen: 'h:1', secret_env: A, secret_file: b}", "sync", "contradict"),
        ("{role: sync_master, listen: 'h:1'}", "async", "use flush: sync, or async_master"),
    ],
)
def test_wrong_sections(tmp_path: Path, section: str, flush: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        config_of(tmp_path, section, flush=flush)


def test_capture_refuses_to_write_a_store_that_follows(tmp_path: Path) -> None:
    config = config_of(tmp_path, "{role: standby, master: 'h:1'}")
    with pytest.raises(UsageError, match=r"follows another one.*set role to none, sync_master or async_master"):
        Capture(config).run()
    assert not config.store.path.exists()


def test_standby_needs_the_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = configure(tmp_path, "{role: sync_master, listen: 'h:1'}")
    assert main(["--conf-dir", str(file.parent), "standby", "shop"]) == 2
    assert "this machine follows no master" in capsys.readouterr().err


def test_opening_a_standby_s_store_takes_over(tmp_path: Path) -> None:
    """It does so whatever its role is, so that the old master is recognised."""
    transactions = make_transactions(10)
    with ExitStack() as stack:
        log = TransactionLog(tmp_path / "m", destination="shop", segment_bytes=65536)
        stack.callback(log.close)
        master = open_master(log)
        stack.callback(master.close)
        standby = Standby(tmp_path / "store", master.address)
        stack.callback(standby.close)
        log.put(transactions)
        assert master.wait_until(transactions[-1].seq, 10)
    config = config_of(tmp_path, "{}")
    log = TransactionLog(config.store.path, destination="shop", segment_bytes=65536)
    assert replication.start_master(config, log) is None
    log.close()
    term = read_epoch(config.store.path)
    assert term is not None
    assert (term.number, term.state, term.since_seq) == (2, "master", transactions[-1].seq)


def test_a_store_without_a_standby_has_no_epoch(tmp_path: Path) -> None:
    config = config_of(tmp_path, "{}")
    log = TransactionLog(config.store.path, destination="shop", segment_bytes=65536)
    assert replication.start_master(config, log) is None
    log.close()
    assert read_epoch(config.store.path) is None


def test_capture_s_hook_replicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_SECRET", SECRET)
    port = free_port()
    config = config_of(tmp_path, f"{{role: sync_master, listen: '{HOST}:{port}', secret_env: STANDBY_SECRET}}")
    log = TransactionLog(config.store.path, destination="shop", segment_bytes=65536)
    master = replication.start_master(config, log)
    assert master is not None
    follower = Follower(tmp_path / "s", destination="shop", master=master.address, secret=SECRET.encode())
    stop = threading.Event()
    thread = threading.Thread(target=follower.run, args=(stop,))
    thread.start()
    transactions = make_transactions(20)
    log.put(transactions)
    replication.finish_master(config, log, master)
    assert StoreReader(tmp_path / "s").last_seq() == transactions[-1].seq
    stop.set()
    thread.join()
    master.close()
    log.close()
