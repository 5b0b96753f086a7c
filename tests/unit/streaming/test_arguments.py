"""Wrong arguments of ``cdc.stream`` are refused with a sentence that says what to pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

import cdc
from cdc.base.errors import CdcError, ConfigError, UsageError
from cdc.streaming import FileStore, MemoryRing

URL = "mysql://t@127.0.0.1:1"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"store": "disk"}, UsageError, r"store='disk' is no kind of store\. Pass memory, file"),
        ({"store": 7}, UsageError, r"store=7 is no kind of store"),
        ({"store": "file"}, UsageError, r"needs a folder\. Pass it as state"),
        ({"store": FileStore()}, UsageError, r"needs a folder\. Pass it as state"),
        ({"readers": ["a", "a"]}, UsageError, r"readers names 'a' twice"),
        ({"readers": ["a/b"]}, UsageError, r"'a/b' cannot be the name"),
        ({"start": "snapshot"}, UsageError, r"start='snapshot' reads tables.*Pass now"),
        ({"start": "yesterday"}, ConfigError, r"source\.start: .*must be one of snapshot, earliest, now"),
        ({"start": datetime(2026, 1, 1)}, ConfigError, r"source\.start\.time.*zone"),  # noqa: DTZ001
        ({"start": {"file": "x", "pos": 4}}, ConfigError, r"source\.start\.file: 'x' is not the name of a binlog file"),
        ({"tables": ["("]}, ConfigError, r"tables\.include"),
        ({"tables": []}, ConfigError, r"tables\.include: must not be empty"),
        ({"tables": {"included": ["a"]}}, ConfigError, r"tables\.included: unknown key.*include"),
        ({"exclude": "a"}, ConfigError, r"source\.exclude: unknown key"),
        ({"ssl_mod": "disabled"}, ConfigError, r"source\.ssl_mod: unknown key.*ssl_mode"),
        ({"server_id": 2**32}, ConfigError, r"source\.server_id"),
    ],
)
def test_wrong_arguments(
    arguments: dict[str, Any], error: type[CdcError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message) as caught:
        cdc.stream(URL, **arguments)
    assert not caught.value.retryable
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MemoryRing(max_transaction_bytes=0), r"max_transaction_bytes=0"),
        (lambda: FileStore(max_transaction_bytes=0), r"max_transaction_bytes=0"),
        (lambda: FileStore(segment_bytes=10), r"segment_bytes=10 is too small"),
        (lambda: FileStore(flush=cast(Any, "often")), r"flush='often'.*Pass sync, async"),
    ],
)
def test_wrong_settings_of_stores(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://127.0.0.1:1", r"has no user"),
        ("mysql://t@", r"has no host"),
        ("mysql://t:secret@127.0.0.1:1/shop", r"must end with the port"),
        ("binlog://folder", r"absolute path"),
    ],
)
def test_wrong_urls(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        cdc.stream(url)
    assert "secret" not in str(caught.value)


def test_a_configuration_has_its_own_settings(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "shop.yaml"
    file.parent.mkdir()
    text = (
        "source: {url: 'mysql://t@127.0.0.1:1', server_id: 7, standbys: ['127.0.0.1:2']}\n"
        "tables: {include: ['shop\\..*']}\nstore: {path: store}\nmeta: {path: meta}\napply: {target: lake}\n"
    )
    file.write_text(text)
    with pytest.raises(UsageError, match=r"heartbeat_s: a configuration has its own"):
        cdc.stream(file, heartbeat_s=1)
    with pytest.raises(UsageError, match=r"source\.standbys: a stream reads one server"):
        cdc.stream(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        cdc.stream(tmp_path / "other.yaml")


def test_importing_cdc_loads_nothing_of_it() -> None:
    code = "import sys, cdc; cdc.stream; print([m for m in sys.modules if m.startswith(('cdc.', 'numpy', 'pyarrow'))])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
