"""Alarms of a real capture: killed, cut off from its source, and stopped by an error."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.config import DestinationConfig
from cdc.testing.servers import Server
from cdc.watch.alarms.watch import AlarmWatch
from tests.servers.capture.test_capture import configure
from tests.support.alarms import Receiver, receiver, wait_until, with_alarms
from tests.support.proxy import Proxy


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


@pytest.fixture
def database(mysql9: Server) -> Iterator[str]:
    name = f"alarms_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.t (id INT AUTO_INCREMENT PRIMARY KEY)")
    yield name
    mysql9.execute(f"DROP DATABASE {name}")


def start(config: DestinationConfig, **environment: str) -> subprocess.Popen[bytes]:
    log = (config.file.parent / "capture.log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), "capture"],
        stdout=log,
        stderr=log,
        env=os.environ | environment,
    )


@pytest.mark.long
def test_alarms_of_a_real_capture(mysql9: Server, database: str, tmp_path: Path, hook: Receiver) -> None:
    with Proxy(mysql9.port) as proxy:
        config = configure(tmp_path, mysql9, database)
        config.file.write_text(config.file.read_text().replace(f":{mysql9.port}", f":{proxy.port}"))
        config = with_alarms(config, webhook={"url": hook.url}, for_s=0.5)
        state = config.store.path / "capture.json"
        capture = start(config)
        try:
            wait_until(lambda: state.exists() and b'"connected": true' in state.read_bytes(), "capture", 60)
            proxy.target = 1  # nobody listens there
            proxy.cut()
            wait_until(lambda: ("raised", "capture_disconnected") in hook.events(), "the alarm of the connection", 40)
            proxy.target = mysql9.port
            wait_until(lambda: ("resolved", "capture_disconnected") in hook.events(), "its end", 60)
        finally:
            capture.send_signal(signal.SIGKILL)
            capture.wait(10)
        events = len(hook.events())
        watch = AlarmWatch(config, every_s=0.1)  # as a server would
        watch.start()
        try:
            wait_until(lambda: hook.events()[events:] == [("raised", "capture_down")], "the alarm of the kill")
            capture = start(config)
            wait_until(lambda: hook.events()[events + 1 :] == [("resolved", "capture_down")], "its end", 60)
            capture.send_signal(signal.SIGTERM)
            assert capture.wait(60) == 0
        finally:
            watch.close()
        assert [event for event in hook.events() if event[1] == "capture_failed"] == [], "a stop is no failure"

        # The source refuses the password: the same error at each start is one alarm.
        events = len(hook.events())
        for _ in range(2):
            assert start(config, TOWPATH_TEST_PASSWORD="hunter2").wait(60) != 0
        assert hook.events()[events:] == [("raised", "capture_failed")]
        said = hook.taken[-1].body + (config.file.parent / "capture.log").read_bytes() + config.alarms_path.read_bytes()
        assert b"hunter2" not in said
        assert b"PATH-SECRET" not in (config.file.parent / "capture.log").read_bytes()
