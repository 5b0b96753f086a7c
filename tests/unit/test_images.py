"""The Containerfile and the compose file name files, extras, modules and commands that exist. No builder checks them."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cdc.cli.main import application

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "container"
CONTAINERFILE = (FOLDER / "Containerfile").read_text(encoding="utf-8")


def test_every_copied_file_exists() -> None:
    copied = [line.split()[1:-1] for line in CONTAINERFILE.splitlines() if line.startswith("COPY ")]
    sources = [name for names in copied if not names[0].startswith("--from=") for name in names]
    assert sources
    assert [name for name in sources if not (ROOT / name).exists()] == []
    named = re.findall(r"requirements/\w+\.txt", CONTAINERFILE)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_build_finds_all_that_hatchling_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {
        "pyproject.toml",
        project["project"]["readme"],
        *project["project"]["license-files"],
        *wheel["packages"],
        *wheel["force-include"],
        wheel["hooks"]["custom"]["path"],
    }
    assert wanted <= set(re.findall(r"[\w.]+", "\n".join(re.findall(r"^COPY (.*)$", CONTAINERFILE, re.MULTILINE))))


def test_its_extras_and_modules_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", CONTAINERFILE)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    modules = [name for name in re.findall(r"python -m (\S+)", CONTAINERFILE) if name.startswith("cdc")]
    assert modules
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def services() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    return dict(content["services"])


def commands() -> list[list[str]]:
    """The commands of ``cdc`` that the services run."""
    command_lines = []
    for service in services().values():
        if service["image"].startswith("towpath") and "entrypoint" not in service:
            command_lines.append([str(word) for word in service["command"]])
        else:
            script = " ".join(service["command"]) if "entrypoint" in service else ""
            command_lines += [words.split() for words in re.findall(r"cdc ([^;]+);", script)]
    return command_lines


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_commands_of_the_compose_file_exist(command: list[str]) -> None:
    root: Any = typer.main.get_command(application())
    named = root.commands[command[0]]
    options = {option for parameter in named.params for option in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= options


def test_the_services_share_the_volumes_and_the_password() -> None:
    ours = [service for service in services().values() if service["image"].startswith("towpath")]
    assert len(ours) == 2
    assert all(service["volumes"] == ours[0]["volumes"] for service in ours)
    assert all("CDC_SOURCE_PASSWORD" in service["environment"] for service in ours)
