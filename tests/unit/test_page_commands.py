"""Every command of the tutorial, the how-to pages and the READMEs is accounted for: the real command line takes it, and it
runs in test_pages.py among the slow tests, or a table has the reason why it cannot."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable

import pytest

from tests.support import page_commands
from tests.support.page_commands import ROOT, Command, blocks, calls, commands, parse, python_blocks, shape, spans
from tests.support.page_table import PAGES, PYTHON

WITH_COMMANDS = [page for page in page_commands.PAGES if commands(page)]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_is_run_or_listed(page: str) -> None:
    """If this fails, the page is new: say in tests/support/page_table.py what it presumes."""
    steps = PAGES[page].steps
    unused = [key for key in steps if not any(command.text.startswith(key) for command in commands(page))]
    assert unused == []
    for command in commands(page):
        if (test := PAGES[page].step(command).shown_by) and (words := calls(command, "cdc")):
            assert words[0][0] in (ROOT / test).read_text(), f"{test} does not run {command.text}"
    assert [step.shown_by for step in steps.values() if step.shown_by and not (ROOT / step.shown_by).exists()] == []


def test_the_table_has_no_other_pages() -> None:
    assert [page for page in PAGES if page not in WITH_COMMANDS] == []


def test_few_commands_do_not_run() -> None:
    """The reason of each is in the table. A page without one that runs needs more than one machine."""
    every = [(page, command) for page in WITH_COMMANDS for command in commands(page)]
    unrun = [command for page, command in every if PAGES[page].step(command).unrun]
    assert len(every) > 140
    assert len(unrun) < len(every) / 3


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_command_line_takes_every_command(page: str) -> None:
    for command in commands(page):
        if command.text.startswith("#!"):
            subprocess.run(["sh", "-n"], input=command.text, text=True, check=True)
            continue
        for arguments in calls(command, "cdc"):
            parse(arguments)
        for arguments in calls(command, "pip"):
            assert arguments[0] == "install"
            require_extras(arguments[1])


def require_extras(requirement: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    match = re.fullmatch(r"(?:towpath|\.)\[([\w,]+)\]", requirement)
    assert match and set(match[1].split(",")) <= set(project["optional-dependencies"])


@pytest.mark.parametrize("page", page_commands.PAGES)
def test_the_command_line_takes_what_sentences_name(page: str) -> None:
    """A command in a sentence may lack arguments, but its options exist."""
    for code in spans(page):
        words = shlex.split(code)
        if words[0] == "cdc" and "…" not in words:
            parse(words[1:], is_whole=False)


@pytest.mark.parametrize("page", page_commands.PAGES)
def test_commands_stand_in_blocks_of_a_shell(page: str) -> None:
    """Else nothing of the above would look at them."""
    others = [block for block in blocks(page) if block.language in ("", "text", "bash", "shell")]
    lines = [line for block in others for line in block.text.splitlines()]
    assert [line for line in lines if line.partition(" ")[0] in page_commands.PROGRAMS] == []


@pytest.mark.parametrize("page", [page for page in page_commands.PAGES if python_blocks(page)])
def test_every_python_block_compiles_and_is_run_or_listed(page: str) -> None:
    for number, block in enumerate(python_blocks(page)):
        compile(block.text, f"{page}:{block.line}", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        python = PYTHON[page, number]
        assert not python.shown_by or (ROOT / python.shown_by).exists()


def test_the_table_has_no_other_python_blocks() -> None:
    assert [key for key in PYTHON if key[1] >= len(python_blocks(key[0]))] == []


@pytest.mark.parametrize(
    ("arguments", "is_whole"),
    [
        (["nothing"], True),
        (["apply", "shop", "--nothing"], True),
        (["apply", "--nothing"], False),
        (["batch", "nothing"], False),
        (["decode"], True),
    ],
)
def test_what_the_command_line_does_not_take(arguments: list[str], is_whole: bool) -> None:
    with pytest.raises(Exception, match=r"[Nn]o (such )?(command|option)|[Mm]issing"):
        parse(arguments, is_whole=is_whole)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cdc check shop && cdc apply shop  # both", [["check", "shop"], ["apply", "shop"]]),
        ("mysqldump x | cdc plan shop - --json", [["plan", "shop", "-", "--json"]]),
        ('cdc replay a --to "$(cdc history a 1 --json |\n  python -c \'f()\')"', [["replay", "a", "--to", "SUBSTITUTED"], ["history", "a", "1", "--json"]]),
        ("CDC_CONF=conf cdc status", [["status"]]),
        ("cdc inspect STORE \\\n  --plain x", [["inspect", "STORE", "--plain", "x"]]),
    ],
)  # fmt: skip
def test_calls(text: str, expected: list[list[str]]) -> None:
    assert calls(Command("page", text), "cdc") == expected


def test_commands_are_split_as_a_shell_splits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: Callable[[str, str], list[str]] = lambda language, text: [  # noqa: E731
        command.text for command in page_commands._split(page_commands.Block("page", language, text, 1))
    ]
    assert texts("sh", "a 'x\n  y' # it's\nb \\\n  c\n\nd |\n  e\n") == ["a 'x\n  y' # it's", "b \\\n  c", "d |\n  e"]
    assert texts("console", "$ a\nprinted\n$ b\n") == ["a", "b"]


def test_the_shape_of_a_line() -> None:
    assert shape("Serving shop at http://127.0.0.1:8040.").search("x\n  Serving shop at http://127.0.0.1:9999.")
    assert not shape("Serving shop at http://127.0.0.1:8040.").search("Serving other at http://127.0.0.1:8040.")
