"""The capture task: bounded, stoppable, with permanent and retryable errors."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cdc.airflow.compat import AirflowFailException
from cdc.airflow.connections import airflow_connections, connection_credentials
from cdc.airflow.operators import TowpathCaptureOperator
from cdc.base.errors import ConfigError, SourceRefusedError, SourceUnavailableError
from cdc.config import DestinationConfig, load, secrets
from cdc.config.secrets import Credentials, source_credentials

Write = Callable[..., Path]


class FakeCapture:
    """Runs until it is stopped, or raises ``error``."""

    error: Exception | None = None
    seen: ClassVar[list[tuple[DestinationConfig, float | None]]]

    def __init__(self, config: DestinationConfig, observe: object = None) -> None:
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


def operator(folder: Path, **options: Any) -> TowpathCaptureOperator:
    return TowpathCaptureOperator(task_id="capture", conf_file=str(folder / "shop.yaml"), failure_pause_s=0, **options)


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
    assert time.monotonic() - began < 30


def test_on_kill_stops_capture_from_a_signal_handler(write_conf: Write) -> None:
    """Airflow calls it from SIGTERM's handler, while the same thread waits for the event."""
    program = textwrap.dedent(
        """
        import signal, sys, threading
        import cdc.capture

        class Capture:
            def __init__(self, config, observe): pass
            def run(self, stop, for_s=None, until_current=False):
                print("running", flush=True)
                while not stop.wait(0.0001):
                    pass

        cdc.capture.Capture = Capture
        from cdc.airflow.operators import TowpathCaptureOperator
        task = TowpathCaptureOperator(task_id="capture", conf_file=sys.argv[1])
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
        assert time.monotonic() - began < 60
        assert child.wait(10) == 0
    finally:
        child.kill()
        child.wait()


def test_capture_ends_with_its_supervisor(write_conf: Write) -> None:
    """A task whose supervisor was killed with -9 lives on; it would keep the next run from the store."""
    program = textwrap.dedent(
        """
        import os, sys, time
        import cdc.capture

        class Capture:
            def __init__(self, config, observe): pass
            def run(self, stop, for_s=None, until_current=False):
                print(os.getpid(), flush=True)
                if stop.wait(60):
                    print("ended", flush=True)

        cdc.capture.Capture = Capture
        from cdc.airflow.operators import TowpathCaptureOperator
        task = TowpathCaptureOperator(task_id="capture", conf_file=sys.argv[1])
        if os.fork() == 0:
            task.execute({})
            os._exit(0)
        time.sleep(60)
        """
    )
    conf_file = str(write_conf() / "shop.yaml")
    supervisor = subprocess.Popen([sys.executable, "-c", program, conf_file], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    while not (line := supervisor.stdout.readline().strip()).isdecimal():
        assert line, "the task ended before capture began"
    began = time.monotonic()
    supervisor.kill()
    supervisor.wait()
    assert supervisor.stdout.readline() == "ended\n"
    assert time.monotonic() - began < 60


CONNECTED = """\
source: {url: 'mysql://somebody@db.example:3307', connection: shop_db, server_id: 5, start: earliest}
tables: {include: ['shop\\..*']}
store: {path: ./store}
meta: {path: ./meta}
apply: {target: ./lake}
"""


@pytest.fixture
def in_a_task() -> Iterator[None]:
    """Airflow is asked for connections, until the test ends."""
    with airflow_connections():
        yield


@pytest.mark.usefixtures("in_a_task")
def test_user_and_password_from_an_airflow_connection(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://cdc%40home:s3cret%2F@ignored:1")
    config = load(write_conf(text=CONNECTED) / "shop.yaml")
    assert source_credentials(config.source) == Credentials("cdc@home", "s3cret/")
    assert (config.source.host, config.source.port) == ("db.example", 3307)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://:s3cret@ignored:1")
    assert source_credentials(config.source) == Credentials("somebody", "s3cret")


@pytest.mark.usefixtures("in_a_task")
def test_a_connection_that_airflow_does_not_know(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SHOP_DB", raising=False)
    with pytest.raises(
        ConfigError, match=r"source\.connection: Airflow has no connection 'shop_db'\. Add it: `airflow"
    ):
        source_credentials(load(write_conf(text=CONNECTED) / "shop.yaml").source)


@pytest.mark.usefixtures("in_a_task")
def test_a_connection_without_a_password(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://cdc@ignored:1")
    with pytest.raises(ConfigError, match="holds no password"):
        source_credentials(load(write_conf(text=CONNECTED) / "shop.yaml").source)


@pytest.mark.usefixtures("in_a_task")
def test_airflow_is_not_asked_without_a_connection(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(connection: str) -> Credentials:
        raise AssertionError(connection)

    monkeypatch.setattr(secrets, "_lookup_connection", refuse)
    assert source_credentials(load(write_conf() / "shop.yaml").source).user


def test_a_capture_task_asks_airflow(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", "mysql://cdc:s3cret@ignored:1")
    credentials: list[Any] = []

    def capture(_: TowpathCaptureOperator, config: DestinationConfig, __: threading.Event) -> None:
        credentials.extend([secrets._lookup_connection, source_credentials(config.source)])

    monkeypatch.setattr(TowpathCaptureOperator, "_capture", capture)
    operator(write_conf(text=CONNECTED)).execute({})
    assert credentials == [connection_credentials, Credentials("cdc", "s3cret")]
    assert secrets._lookup_connection is secrets.connections_from_environment
