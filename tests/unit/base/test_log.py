"""Logs: standard error only, two formats, and no secrets."""

from __future__ import annotations

import json

import pytest

from cdc.base.log import LogFormat, configure, get_logger, hide_password


def test_logs_go_to_standard_error_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    configure("json")
    log = get_logger("cdc.somewhere")
    log.info("connected", url="mysql://u:Sesam@h:1", password="Sesam", token="Sesam", rows=3)
    log.debug("unseen")
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    entry = json.loads(line)
    assert entry["event"] == "connected"
    assert entry["url"] == "mysql://u:***@h:1"
    assert entry["rows"] == 3
    assert "Sesam" not in line
    configure("console", verbose=True)
    get_logger("cdc.somewhere").debug("seen")
    assert "seen" in capsys.readouterr().err


def test_hide_password() -> None:
    assert hide_password("from mysql://u:a:b@h to x") == "from mysql://u:***@h to x"
    assert hide_password("mysql://u@h:3306") == "mysql://u@h:3306"


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_line_is_a_sentence_or_an_event_with_values(
    log_format: LogFormat, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: configure("console"))
    configure(log_format)
    get_logger("m").say("A thing is done: mysql://u:pw@h.", "thing done", seconds=1.5, token="x")
    (line,) = capsys.readouterr().err.splitlines()
    if log_format == "json":
        entry = json.loads(line)
        assert (entry["event"], entry["seconds"], entry["module"], entry["token"]) == ("thing done", 1.5, "m", "***")
    else:
        assert line.endswith("A thing is done: mysql://u:***@h.")
