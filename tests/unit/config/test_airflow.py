"""The section ``airflow``: schedules, links and names are checked when the file is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from cdc.base.errors import ConfigError
from cdc.config import AirflowConfig, load


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("90s", 90.0),
        (60, 60.0),
        ("1d", 86400.0),
        ("*/5 * * * *", "*/5 * * * *"),
        (" 0  2 * * sun,WED ", "0 2 * * sun,WED"),
        ("5/15 0-6/2 1,15 jan-mar 0-7", "5/15 0-6/2 1,15 jan-mar 0-7"),
        ("0 0 29 2 *", "0 0 29 2 *"),
        ("@daily", "@daily"),
    ],
)
def test_schedules(value: object, expected: object) -> None:
    assert AirflowConfig.model_validate({"apply_every": value}).apply_every == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("often", "neither a duration like 30s, 15m or 1d nor a cron expression"),
        ("* * * *", "neither a duration"),
        ("* * * * * *", "neither a duration"),
        ("60 * * * *", "minute cannot be '60'"),
        ("* 5-2 * * *", "hour cannot be '5-2'"),
        ("* * 0 * *", "day of the month cannot be '0'"),
        ("* * * foo *", "month cannot be 'foo'"),
        ("* * * * mon#1", "day of the week cannot be 'mon#1'"),
        ("*/0 * * * *", "minute cannot be '\\*/0'"),
        ("0 0 30 feb *", "no day ever matches"),
        ("@often", "neither a duration"),
        ("@continuous", "neither a duration"),
        (True, "must be a number"),
        (0, "must be more than 0"),
        ("0s", "must be more than 0"),
        ([1], "must be a duration or a cron expression"),
    ],
)
def test_schedules_that_are_refused(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AirflowConfig.model_validate({"apply_every": value})


def test_a_time_zone_needs_a_cron_expression() -> None:
    assert AirflowConfig(verify_every="0 3 * * *", timezone="Europe/Berlin").timezone == "Europe/Berlin"
    with pytest.raises(ValidationError, match="timezone has no effect without a cron expression in apply_every"):
        AirflowConfig(timezone="Europe/Berlin")
    for name in ("Berlin", "../etc/passwd", "/etc/localtime"):
        with pytest.raises(ValidationError, match="is not a time zone; write it like Europe/Berlin"):
            AirflowConfig(verify_every="0 3 * * *", timezone=name)


@pytest.mark.parametrize("name", ["alert", "alerts.", ".on_failure", "alerts.on-failure", "os.system('x')"])
def test_paths_of_functions(name: str) -> None:
    assert AirflowConfig(on_failure="team.alerts.on_failure").on_failure == "team.alerts.on_failure"
    with pytest.raises(ValidationError, match="nor the path of a function"):
        AirflowConfig(on_failure=name)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("manifest", "javascript:alert(1)", "must begin with http:// or https://"),
        ("manifest", "https://x/{token}", "unknown placeholder; known are batch, destination, path"),
        ("table", "https://x/{db.__class__}", "unknown placeholder; known are db, destination, path, table"),
        ("table", "https://x/{table!r}", "unknown placeholder"),
        ("table", "https://x/{table:>99999999}", "unknown placeholder"),
        ("spark", "https://x/{", "has a single brace"),
        ("spark", "", "must not be empty"),
    ],
)
def test_links_that_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AirflowConfig.model_validate({"links": {key: value}})


def test_changes_may_start_runs() -> None:
    assert AirflowConfig().start == "schedule"
    config = AirflowConfig.model_validate({"start": "data", "start_pause": "2s"})
    assert (config.start, config.start_pause) == ("data", 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"start": "data", "until": "interval_end"}, "start: data and until: interval_end contradict each other"),
        ({"start_pause": "2s"}, "start_pause has no effect without start: data"),
        ({"start": "events"}, "Input should be 'schedule' or 'data'"),
        ({"capture": "systemd"}, "Input should be 'task' or 'external'"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AirflowConfig.model_validate(settings)


def test_the_watch_over_a_capture_needs_the_files_of_the_store(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    text = (
        "source: {url: 'mysql://cdc@h', server_id: 1}\ntables: {include: ['a\\..*']}\napply: {target: /lake}\n"
        "store: {kind: server, url: 'https://h:8040', token_env: T}\n"
    )
    file.write_text(f"{text}airflow: {{capture: external}}\n")
    with pytest.raises(ConfigError, match=r"airflow\.capture: external and store.kind: server contradict each other"):
        load(file)
    file.write_text(f"{text}airflow: {{start: data}}\n")
    assert load(file).airflow.start == "data"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_deadline": "30m"}, "interval_deadline has no effect without interval"),
        ({"interval": "hour", "interval_wait": "1h", "interval_deadline": "1h"}, "is not before interval_wait"),
    ],
)
def test_a_deadline_has_an_interval_and_comes_before_the_failure(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AirflowConfig.model_validate(settings)


def test_airflow_tells_nobody_without_handlers(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    text = (
        "source: {url: 'mysql://cdc@h', server_id: 1}\ntables: {include: ['a\\..*']}\napply: {target: /lake}\n"
        "store: {path: /store}\nmeta: {path: /meta}\n"
    )
    for key in ("on_failure: alarms", "interval_deadline"):
        settings = "on_failure: alarms" if key != "interval_deadline" else "interval: hour, interval_deadline: 30m"
        file.write_text(f"{text}airflow: {{{settings}}}\n")
        with pytest.raises(ConfigError, match=f"airflow.{key} has no effect without handlers in alarms"):
            load(file)
        file.write_text(f"{text}airflow: {{{settings}}}\nalarms: {{command: [page]}}\n")
        assert load(file).alarms.handlers == ("command",)
