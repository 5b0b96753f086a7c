"""Capture beside long random work, with faults of every kind: the transactions in the store equal the server's own.

None is missing, none is there twice, and they are in the server's order. The server's account is what its own tool
reads in its binlog files. ``TOWPATH_HISTORY_SEEDS`` sets the number of seeds for each server (default: 1),
``TOWPATH_HISTORY_SEED`` a single seed to repeat, ``TOWPATH_HISTORY_SECONDS`` the time in which faults happen (30).
The tests take root: they mount a file system for the store.
"""

from __future__ import annotations

import os
import random
import shutil
import time
import uuid
from pathlib import Path

import pytest

from cdc.binlog.gtids import Flavor, GtidSet, parse_state
from cdc.config import DestinationConfig, load
from cdc.store.formats.gtids import gtids_until
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import HOST, USER, Server
from tests.conftest import SEED
from tests.fault.support import RestartedCommand, run_to_success
from tests.soak.histories.accounts import DATABASE, EXCLUDED, Account, first_difference
from tests.soak.histories.faults import HEARTBEAT_S, Faults, small_disk
from tests.soak.histories.server_account import read_server
from tests.soak.histories.store_account import read_store
from tests.soak.histories.workload import Workload, options
from tests.support.proxy import Proxy

_ONE = os.environ.get("TOWPATH_HISTORY_SEED")
_COUNT = int(os.environ.get("TOWPATH_HISTORY_SEEDS") or 1)
_SECONDS = float(os.environ.get("TOWPATH_HISTORY_SECONDS") or 30)
SEEDS = [int(_ONE)] if _ONE else [(SEED + n) % 2**32 for n in range(_COUNT)]


def configure(folder: Path, kind: str, port: int, rng: random.Random) -> DestinationConfig:
    """Configures a capture from the beginning of the server's history, which MySQL 5.6 must not have begun yet: its
    binlog does not name columns."""
    (folder / "conf").mkdir()
    file = folder / "conf" / "shop.yaml"
    segment_bytes = rng.choice((65536, 1 << 20, 64 << 20))
    disk = rng.choice(("{}", "{warn_ratio: 1, clean_ratio: 1, stop_ratio: 1}"))
    start = "now" if kind == "mysql56" else "earliest"
    file.write_text(
        f"source: {{url: '{'mysql' if kind.startswith('mysql') else 'mariadb'}://{USER}@{HOST}:{port}',"
        f" password_env: TOWPATH_TEST_PASSWORD, server_id: 4711, start: {start}, heartbeat_s: {HEARTBEAT_S}}}\n"
        f"tables: {{include: ['{DATABASE}\\..*'], exclude: ['{DATABASE}\\.{EXCLUDED}.*']}}\n"
        f"store: {{path: disk/store, segment_bytes: {segment_bytes}, disk: {disk}}}\n"
        "meta: {path: disk/meta}\napply: {target: lake}\n"
    )
    return load(file)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("history", SEEDS)
@pytest.mark.parametrize("kind", ["mysql9", "mysql56", "mariadb11", "mariadb10"])
def test_the_store_has_the_transactions_of_the_server(
    kind: str,
    history: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed, began = f"{history} {kind}", time.monotonic()
    rng = random.Random(seed)
    with (
        Server(kind, options=options(kind, rng)) as server,
        Proxy(server.port) as proxy,
        small_disk(tmp_path / "disk") as disk,
    ):
        config = configure(tmp_path, kind, proxy.port, rng)
        workload = Workload(server, seed, config.store.path)
        workload.create()
        if kind == "mysql56":
            server.execute("RESET MASTER")
            run_to_success(config, "capture", "--until-current")
        capture = RestartedCommand(config, "capture")
        faults = Faults(seed, workload, proxy, capture, disk)
        try:
            try:
                with workload:
                    faults.cause(_SECONDS)
                faults.require_retried()
            finally:
                proxy.thaw()
                capture.stop(terminate=True)
            run_to_success(config, "capture", "--until-current")
            ours, theirs = read_store(config), read_server(server)
            difference = first_difference(theirs.transactions, ours.transactions)
            assert difference is None, difference
            _require_gtids(server, config, ours, theirs)
            assert len(theirs.transactions) > 50
            statements = [transaction for transaction in theirs.transactions if transaction.changes[0].kind == "ddl"]
            least = 2 if kind == "mysql56" else 20  # its DDL waits for capture
            assert len(statements) >= least, "the workload has too few DDL statements"
        except BaseException as error:
            _keep(tmp_path, server)
            error.add_note(f"{_told(faults, workload)}\nthe store, and the server's binlog files: {tmp_path}/kept")
            error.add_note(f"To repeat it: TOWPATH_HISTORY_SEED={history} pytest tests/soak/histories -k {kind}")
            raise
    changes = sum(len(transaction.changes) for transaction in theirs.transactions)
    with capsys.disabled():
        print(
            f"\n{kind}, seed {history}: {len(theirs.transactions)} transactions with {changes} changes in "
            f"{time.monotonic() - began:.0f} s; {dict(faults.counts)}; exit codes {capture.codes}\n"
            f"steps: {dict(workload.done)}; failed: {dict(workload.failed)}"
        )


def _keep(folder: Path, server: Server) -> None:
    """Copies the store and the server's binlog files for who looks into a failure; the file system of the store goes
    with the test."""
    shutil.copytree(folder / "disk", folder / "kept")
    for file in server.data.glob("binlog.*"):
        shutil.copy2(file, folder / "kept")


def _require_gtids(server: Server, config: DestinationConfig, ours: Account, theirs: Account) -> None:
    """Checks that both accounts and the store's record of GTIDs have what the server says that it has executed."""
    flavor: Flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.gtid_executed" if flavor == "mysql" else "SELECT @@gtid_binlog_state")
        row = cursor.fetchone()
    assert row is not None
    executed = parse_state(str(row[0]), flavor)
    newest = StoreReader(config.store.path).last_seq()
    assert newest is not None
    assert gtids_until(config.store.path, flavor, newest) == executed
    for account in (ours, theirs):
        for source, numbers in account.gtids.items():
            assert numbers <= theirs.gtids[source]
    if flavor == "mariadb":
        last = {gtid.split("-")[0]: int(gtid.split("-")[2]) for gtid in str(row[0]).split(",")}
        assert {domain: max(numbers) for domain, numbers in theirs.gtids.items()} == last
        return
    account_of_tool = GtidSet(
        {_state_name(source): [(n, n) for n in numbers] for source, numbers in theirs.gtids.items()}
    )
    assert account_of_tool == executed


def _state_name(source: str) -> str:
    """Returns an account's name of a source as a set of GTIDs has it."""
    digits, _, tag = source.partition(":")
    return str(uuid.UUID(digits)) + (f":{tag}" if tag else "")


def _told(faults: Faults, workload: Workload) -> str:
    moments = ", ".join(f"{seconds:.1f} s {name}" for seconds, name in faults.log)
    return f"faults: {moments}\nsteps: {dict(workload.done)}; failed: {dict(workload.failed)}"
