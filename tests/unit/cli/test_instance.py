"""``cdc instance`` against a server in this process: what it prints, its exit codes, and which token it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.cli.main import main
from cdc.server import EmbeddedServer
from tests.support.instances import OPERATOR, VIEWER, change
from tests.unit.server.test_instances import make, running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with running(make(tmp_path)) as running_server:
        yield running_server


def cdc(capfd: pytest.CaptureFixture[str], server: EmbeddedServer, conf: Path, *words: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = main(["--conf-dir", str(conf), "instance", *words, "--url", server.url])
    said = capfd.readouterr()
    return code, said.out, said.err


def states(text: str) -> dict[str, str]:
    instances: list[dict[str, Any]] = json.loads(text)["instances"]
    return {instance["destination"]: instance["state"] for instance in instances}


def test_the_tokens_are_those_of_the_folder(
    tmp_path: Path, server: EmbeddedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    conf = tmp_path / "conf"
    code, text, _ = cdc(capfd, server, conf, "list")
    assert (code, text.split()[:3]) == (0, ["destination", "state", "since"])
    assert "running" in text
    for action, state in (("stop", "stopped"), ("start", "running"), ("restart", "running")):
        code, text, _ = cdc(capfd, server, conf, action, "shop", "--json")
        assert (code, states(text)) == (0, {"shop": state})
    assert states(cdc(capfd, server, conf, "reload", "--json")[1]) == {"shop": "running"}
    code, text, _ = cdc(capfd, server, conf, "logs", "shop", "--json")
    assert (code, json.loads(text)) == (0, {"destination": "shop", "lines": []})
    code, _, said = cdc(capfd, server, conf, "stop", "other")
    assert (code, "no instance 'other'" in said) == (2, True)


def test_the_environments_token_comes_first(
    tmp_path: Path, server: EmbeddedServer, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, said = cdc(capfd, server, empty, "list")
    assert (code, "none of this server's roles" in said) == (2, True)
    for token, expected in ((VIEWER, 2), (OPERATOR, 0)):
        monkeypatch.setenv("CDC_SERVER_TOKEN", token)
        assert cdc(capfd, server, empty, "list", "--json")[0] == 0
        code, _, said = cdc(capfd, server, empty, "reload")
        assert (code, "a viewer may not act" in said) == (expected, expected == 2)


def test_what_is_no_server_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = make(tmp_path, store=False)
    change(file, server={"http": 1})
    assert main(["--conf-dir", str(file.parent), "instance", "list"]) == 1
    assert "http://127.0.0.1:1: the server did not answer" in capfd.readouterr().err
    for wrong, expected in (
        ("ftp://x", "not the address"),
        ("http://[", "--url"),
        ("http://a:b@localhost:1", "must not hold a password"),
        ("http://192.0.2.1:1", "must be https"),
    ):
        assert main(["--conf-dir", str(file.parent), "instance", "list", "--url", wrong]) == 2
        assert expected in capfd.readouterr().err
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["--conf-dir", str(empty), "instance", "list"]) == 2
    assert "names a server" in capfd.readouterr().err
