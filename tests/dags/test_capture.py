"""The capture task: bounded, stoppable, and its errors told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from airflow.sdk.exceptions import AirflowFailException

from cdc.airflow.connections import with_connection
from cdc.airflow.operators import CaptureOperator
from cdc.config import DestinationConfig, load
from cdc.errors import ConfigError, SourceRefusedError, SourceUnavailableError
from cdc.source.connection import resolve_password

Write = Callable[..., Path]


class FakeCapture:
    """Runs until it is stopped, or raises ``error``."""

    error: Exception | None = None
    seen: ClassVar[list[tuple[DestinationConfig, float | None]]]

    def __init__(self, config: DestinationConfig) -> None:
        self.config = config

    def run(self, stop: threading.Event, for_s: float | None = None, until_current: bool = False) -> None:
        self.seen.append((self.config, for_s))
        if self.error is not None:
            raise self.error
        assert stop.wait(for_s or 60) or for_s is not None


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> type[FakeCapture]:
    class Fake(FakeCapture):
        seen: ClassVar[list[tuple[DestinationConfig, float | None]]] = []

    monkeypatch.setattr("cdc.capture.Capture", Fake)
    return Fake


def operator(folder: Path, **options: Any) -> CaptureOperator:
    return CaptureOperator(task_id="capture", conf_file=str(folder / "shop.yaml"), failure_pause_s=0, **options)


def test_a_run_is_bounded(write_conf: Write, capture: type[FakeCapture]) -> None:
    operator(write_conf(), capture_for_s=0.01).execute({})
    ((config, for_s),) = capture.seen
    assert (config.name, for_s) == ("shop", 0.01)


def test_a_permanent_error_is_not_retried(write_conf: Write, capture: type[FakeCapture]) -> None:
    capture.error = SourceRefusedError("binlog_format is STATEMENT", remedy="Set it to ROW.")
    with pytest.raises(AirflowFailException, match=r"binlog_format is STATEMENT\. Set it to ROW\."):
        operator(write_conf()).execute({})


def test_a_retryable_error_is_left_to_the_retries(write_conf: Write, capture: type[FakeCapture]) -> None:
    capture.error = SourceUnavailableError("nobody answers")
    with pytest.raises(SourceUnavailableError, match="nobody answers"):
        operator(write_conf()).execute({})


def test_a_broken_configuration_is_permanent(write_conf: Write) -> None:
    with pytest.raises(AirflowFailException, match="sauce: unknown key"):
        operator(write_conf(text="sauce: {}\n")).execute({})


def test_on_kill_ends_the_pause_after_a_permanent_error(write_conf: Write, capture: type[FakeCapture]) -> None:
    capture.error = SourceRefusedError("no")
    task = operator(write_conf())
    task.failure_pause_s = 60
    threading.Timer(0.2, task.on_kill).start()
    began = time.monotonic()
    with pytest.raises(AirflowFailException):
        task.execute({})
    assert time.monotonic() - began < 5


def test_on_kill_stops_capture_from_a_signal_handler(write_conf: Write) -> None:
    """As Airflow calls it: from SIGTERM's handler, while the same thread waits for the very event."""
    program = textwrap.dedent(
        """
        import signal, sys, threading
        import cdc.capture

        class Capture:
            def __init__(self, config): pass
            def run(self, stop, for_s=None, until_current=False):
                print("running", flush=True)
                while not stop.wait(0.0001):
                    pass

        cdc.capture.Capture = Capture
        from cdc.airflow.operators import CaptureOperator
        task = CaptureOperator(task_id="capture", conf_file=sys.argv[1])
        signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
        task.execute({})
        print("ended", flush=True)
        """
    )
    conf_file = str(write_conf() / "shop.yaml")
    child = subprocess.Popen([sys.executable, "-c", program, conf_file], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        while "running" not in (line := child.stdout.readline()):
            assert line, "the child ended before capture began"
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "ended\n"
        assert time.monotonic() - began < 1
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()


CONNECTED = """\
source: {url: 'mysql://somebody@db.example:3307', connection: shop_db, server_id: 5, start: earliest}
tables: {include: ['shop\\..*']}
store: {path: ./store}
meta: {path: ./meta}
apply: {target: ./lake}
"""


def test_user_and_password_from_an_airflow_connection(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://cdc%40home:s3cret%2F@ignored:1")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    config = with_connection(load(write_conf(text=CONNECTED) / "shop.yaml"))
    assert (config.source.user, config.source.host, config.source.port) == ("cdc@home", "db.example", 3307)
    assert resolve_password(config.source) == "s3cret/"
    assert (config.name, config.file.name) == ("shop", "shop.yaml")


def test_a_connection_that_is_not_there(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB", raising=False)
    with pytest.raises(ConfigError, match="there is no Airflow connection 'shop_db'"):
        with_connection(load(write_conf(text=CONNECTED) / "shop.yaml"))


def test_a_connection_without_a_password(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://cdc@ignored:1")
    with pytest.raises(ConfigError, match="holds no password"):
        with_connection(load(write_conf(text=CONNECTED) / "shop.yaml"))


def test_no_connection_no_change(write_conf: Write) -> None:
    config = load(write_conf() / "shop.yaml")
    assert with_connection(config) is config
