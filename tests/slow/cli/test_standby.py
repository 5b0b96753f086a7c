"""``cdc standby`` as a process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from cdc.cli.main import main
from cdc.event_store.transaction_log import TransactionLog
from cdc.store.writer.durability import PutStatus
from cdc.testing.transactions import make_transactions
from tests.support.standby import SECRET, configure, digests, open_master


def test_the_command_follows_until_sigterm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the process the store opens without recovery, and status shows both sides."""
    transactions = make_transactions(30)
    secret = tmp_path / "b" / "conf" / "secret"
    secret.parent.mkdir(parents=True)
    secret.write_text(SECRET + "\n")
    with ExitStack() as stack:
        log = TransactionLog(tmp_path / "a" / "store", destination="shop", segment_bytes=65536)
        stack.callback(log.close)
        master = open_master(log, secret=SECRET.encode())
        stack.callback(master.close)
        file = configure(tmp_path / "b", f"{{role: standby, master: '{master.address}', secret_file: secret}}")
        conf = ["--conf-dir", str(file.parent)]
        with subprocess.Popen(
            [sys.executable, "-m", "cdc", *conf, "standby", "shop"], stderr=subprocess.PIPE
        ) as process:
            stack.callback(process.kill)
            deadline = time.monotonic() + 60
            while not any(standby.connected for standby in master.standbys()):
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.01)
            assert log.put(transactions) is PutStatus.PUT_OK
            time.sleep(1.2)  # both sides write their status once a second
            assert main([*conf, "status", "shop", "--json"]) == 0
            shown = json.loads(capsys.readouterr().out)["standby"]
            assert (shown["role"], shown["term"], shown["running"]) == ("standby", 1, True)
            assert shown["peers"][0]["connected"] is True
            assert main([*conf, "status", "shop"]) == 0
            assert "standby, epoch 1: " in capsys.readouterr().out
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=30)[1].decode()
            assert process.returncode == 0, said
        assert f"has everything up to {transactions[-1].seq}" in said
        assert SECRET not in said
        assert digests(tmp_path / "b" / "store") == digests(tmp_path / "a" / "store")
    assert not (tmp_path / "b" / "store" / "abort").exists()
