"""A watch beside a real store: who sends, what a handler that hangs costs, and the commands."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.base.errors import LeaseHeldError, SourceRefusedError
from cdc.batches.service import BatchService
from cdc.cli.main import main
from cdc.config import DestinationConfig
from cdc.watch.alarms.conditions import Facts
from cdc.watch.alarms.start import watched
from cdc.watch.alarms.watch import AlarmWatch
from tests.support.alarms import SECRET, Receiver, program, receiver, wait_until, with_alarms
from tests.support.commit_times import fill
from tests.support.unit_batches import IDENTITY, make_config

RUN_FAILED = ("raised", "run_failed")


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as endpoint:
        yield endpoint


def prepared(folder: Path, **alarms: Any) -> DestinationConfig:
    """Returns a destination whose last run failed."""
    made = with_alarms(make_config(folder), **{"for_s": 0, "lag_s": "90000d", **alarms})
    fill(made.store.path, [1, 2, 3, 4])
    service = BatchService(made)
    service.meta.bind_source(IDENTITY)
    lease = service.get("owner", wait_s=0)
    assert lease is not None
    service.rollback(lease.batch, lease.token)
    return made


def succeed(config: DestinationConfig) -> None:
    service = BatchService(config)
    lease = service.get("owner", wait_s=0)
    assert lease is not None
    service.ack(lease.batch, lease.token, results=[])


@contextmanager
def watching(config: DestinationConfig, **more: Any) -> Iterator[AlarmWatch]:
    watch = AlarmWatch(config, every_s=0.05, **more)
    watch.start()
    try:
        yield watch
    finally:
        watch.close()


def test_an_alarm_is_sent_and_resolved(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url}, command=program(tmp_path))
    with watching(config) as watch:
        wait_until(lambda: watch.counts["webhook", True] + watch.counts["command", True] == 2, "both")
        assert watch.raised == {"run_failed": 1}
        succeed(config)
        wait_until(lambda: watch.counts["webhook", True] + watch.counts["command", True] == 4, "both again")
    assert hook.events() == [RUN_FAILED, ("resolved", "run_failed")]
    lines = (tmp_path / "pager.out").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["raised", "resolved"]
    assert watch.raised == {}


def test_of_two_watches_one_sends_and_the_other_takes_over(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url})
    with watching(config) as other:
        wait_until(lambda: bool(hook.taken), "the alarm")
        with watching(config) as second:
            time.sleep(0.3)
            assert (other.is_sender, second.is_sender) == (True, False)
            other.close()
            wait_until(lambda: second.is_sender, "the takeover")
            succeed(config)
            wait_until(lambda: len(hook.taken) == 2, "the end")
    assert hook.events() == [RUN_FAILED, ("resolved", "run_failed")]


def test_a_handler_that_hangs_delays_no_other_and_not_the_end(tmp_path: Path, hook: Receiver) -> None:
    code = f"open({str(tmp_path / 'begun')!r}, 'a').write('x')\ntime.sleep(600)"
    config = prepared(tmp_path, webhook={"url": hook.url}, command=program(tmp_path, code=code), timeout_s=0.5)
    with capture_logs() as logs, watching(config) as watch:
        wait_until(lambda: watch.counts["command", False] == 1, "the failure")
        succeed(config)
        wait_until(lambda: len(hook.taken) == 2, "the end of the alarm")
        began = time.monotonic()
        watch.close()
        assert time.monotonic() - began < 15
    (line,) = [record for record in logs if record["event"] == "an alarm was not sent"]
    assert (line["handler"], line["again_in_s"]) == ("command", 5)
    assert "was killed" in line["reason"]


def test_a_server_that_drips_is_given_up(tmp_path: Path, hook: Receiver) -> None:
    """It sends a byte now and then, so that no step ever takes too long."""
    import socket

    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        peer, _ = listener.accept()
        peer.sendall(b"HTTP/1.1 200 OK\r\n")
        while not stop.wait(0.05):
            try:
                peer.sendall(b"x: y\r\n")
            except OSError:
                return

    threading.Thread(target=drip, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    config = prepared(tmp_path, webhook={"url": url}, command=["cat"], timeout_s=0.2)
    with capture_logs() as logs, watching(config) as watch:
        wait_until(lambda: watch.counts["webhook", False] == 1, "the failure")
        wait_until(lambda: watch.counts["command", True] == 1, "the other one")
    stop.set()
    assert any("no answer within 2 s" in str(record.get("reason")) for record in logs)


def test_a_status_that_hangs_is_an_alarm(tmp_path: Path, hook: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url})
    let_go = threading.Event()
    monkeypatch.setattr("cdc.watch.alarms.watch.collect", lambda *_, **__: let_go.wait(20))
    monkeypatch.setattr("cdc.watch.alarms.watch._STATUS_S", 0.3)
    with watching(config):
        wait_until(lambda: hook.events() == [("raised", "status_unreadable")], "the alarm")
        assert "hangs" in hook.taken[0].document["detail"]
        assert len([thread for thread in threading.enumerate() if thread.name.startswith("alarm-status")]) == 1
        monkeypatch.setattr("cdc.watch.alarms.watch.collect", __import__("cdc.watch.status").watch.status.collect)
        monkeypatch.setattr("cdc.watch.alarms.watch._STATUS_S", 20.0)
        let_go.set()
        wait_until(lambda: ("resolved", "status_unreadable") in hook.events(), "the end")


def test_a_damaged_file_is_kept_and_a_new_one_begins(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url})
    config.alarms_path.write_text("{")
    with capture_logs() as logs, watching(config):
        wait_until(lambda: hook.events() == [RUN_FAILED], "the alarm")
    assert config.alarms_path.with_name("store.alarms.json.damaged").read_text() == "{"
    assert any("a new one begins" in record["event"] for record in logs)


def test_a_newer_file_stays_and_nothing_is_sent(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url})
    config.alarms_path.write_text('{"version": 2}')
    with capture_logs() as logs, watching(config):
        wait_until(lambda: any("has format version 2" in str(record.get("error")) for record in logs), "the error")
        time.sleep(0.2)
    assert (hook.got, config.alarms_path.read_text()) == ([], '{"version": 2}')
    assert len([record for record in logs if "format version" in str(record)]) == 1, "said once"


def test_the_error_of_capture_is_told_before_it_ends(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url}, ignore=["run_failed"], for_s=60)
    for _ in range(2):
        with pytest.raises(SourceRefusedError), watched(config):
            raise SourceRefusedError("mysql://u:hunter2@h refuses", remedy="Change it.")
    assert hook.events() == [("raised", "capture_failed")], "once, and not at the second start"
    assert hook.taken[0].document["detail"] == "mysql://u:***@h refuses. Change it."
    with pytest.raises(LeaseHeldError), watched(config):
        raise LeaseHeldError("another capture runs")
    assert len(hook.taken) == 1


def test_an_end_does_not_wait_for_a_receiver_longer_than_for_one_try(tmp_path: Path, hook: Receiver) -> None:
    hook.delay_s = 30
    config = prepared(tmp_path, webhook={"url": hook.url}, timeout_s=0.3)
    began = time.monotonic()
    with pytest.raises(SourceRefusedError), watched(config):
        raise SourceRefusedError("it refuses")
    assert time.monotonic() - began < 15
    began = time.monotonic()
    with watched(config):
        time.sleep(0.2)
    assert time.monotonic() - began < 15


def test_facts_of_the_process(tmp_path: Path, hook: Receiver) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url}, ignore=["run_failed"])
    facts = Facts(failure="the child ended with code 2")
    with watching(config, facts=lambda: facts):
        wait_until(lambda: hook.events() == [("raised", "capture_failed")], "the alarm")


# --- commands


def run(capsys: pytest.CaptureFixture[str], config: DestinationConfig, *words: str) -> tuple[int, str, str]:
    code = main(["--conf-dir", str(config.file.parent), "alarm", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_test_alarm_goes_to_all(
    tmp_path: Path, hook: Receiver, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALARM_SECRET", SECRET)
    hooked = {"url": hook.url, "secret_env": "ALARM_SECRET"}
    config = with_alarms(make_config(tmp_path), webhook=hooked, command=program(tmp_path))
    assert run(capsys, config, "test", "shop") == (0, "webhook: took it\ncommand: took it\n", "")
    assert hook.taken[0].document["event"] == "test"
    hook.status = 500
    code, out, err = run(capsys, config, "test", "--json")
    assert code == 1
    document = json.loads(out)
    assert (document["ok"], [handler["ok"] for handler in document["handlers"]]) == (False, [False, True])
    assert "answers with status 500" in document["handlers"][0]["error"]
    assert "webhook did not take the test alarm" in err
    assert SECRET not in out + err and "PATH-SECRET" not in out + err


def test_the_list(tmp_path: Path, hook: Receiver, capsys: pytest.CaptureFixture[str]) -> None:
    config = prepared(tmp_path, webhook={"url": hook.url})
    assert run(capsys, config, "list") == (0, "shop: no alarm is raised.\n", "")
    with watching(config) as watch:
        wait_until(lambda: watch.counts["webhook", True] == 1, "the alarm")
    code, out, _ = run(capsys, config, "list", "--json")
    (alarm,) = json.loads(out)["alarms"]
    assert (code, alarm["alarm"], alarm["messages"]) == (0, "run_failed", {"webhook": 1})
    assert "run_failed" in run(capsys, config, "list")[1]


def test_without_alarms_the_commands_say_so_and_nothing_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_config(tmp_path)
    code, _, err = run(capsys, config, "test")
    assert code == 2
    assert "nobody is told of alarms" in err
    with watched(config) as watch:
        assert watch is None
    assert os.listdir(tmp_path) == ["conf"]
