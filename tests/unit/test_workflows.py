"""The workflows of GitHub name targets that exist, and actions by commits, which no one can replace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_targets_exist(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action)] == []
    commands = [step["run"] for step in steps if "run" in step]
    for job in jobs.values():
        commands += [f"make {target}" for target in job.get("strategy", {}).get("matrix", {}).get("target", ())]
    named = {name for command in commands for name in re.findall(r"make ([a-z-]+)", command)}
    assert named
    assert named <= TARGETS
    assert all((ROOT / command).exists() for command in commands if command.startswith("."))
