"""``cdc deploy print``: files on standard output, or in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import cdc
from cdc.base.errors import ConfigError
from cdc.cli import deploy
from cdc.cli import main as cli
from cdc.cli.deploy import DeployKind

ROOT = Path(__file__).parents[3]


def test_one_file_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["deploy", "print", "compose"]) == 0
    assert capsys.readouterr().out == (ROOT / "deploy" / "container" / "compose.yaml").read_text(encoding="utf-8")


def test_several_files_are_printed_with_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["deploy", "print", "dags"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ---")]
    assert titles == [f"# --- {file.name}" for file in sorted((ROOT / "dags").glob("*.py"))]


def test_a_folder_gets_the_files_and_keeps_what_was_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["deploy", "print", "prometheus", "--to", str(tmp_path / "new")]
    assert cli.main(command) == 0
    assert cli.main(command) == 0, "the same content is no conflict"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["alerts.yml", "prometheus.yml"]
    (tmp_path / "new" / "alerts.yml").write_text("mine", encoding="utf-8")
    (tmp_path / "new" / "prometheus.yml").unlink()
    capsys.readouterr()
    assert cli.main(command) == 2
    assert "alerts.yml" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["alerts.yml"], "nothing was written"


def test_everything_in_deploy_can_be_printed() -> None:
    given = {content for kind in DeployKind for content in deploy.files(kind).values()}
    present = {file.read_bytes() for file in (ROOT / "deploy").rglob("*") if file.is_file()}
    assert present <= given


def test_an_installation_without_the_files_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc, "__file__", str(tmp_path / "cdc" / "__init__.py"))
    with pytest.raises(ConfigError, match=r"deploy.systemd: .* Install towpath from its wheel"):
        deploy.files(DeployKind.systemd)
