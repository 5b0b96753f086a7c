"""The commands and the Python blocks of the tutorial, the how-to pages and the READMEs, as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from cdc.cli.main import application

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "conf/README.md",
    "docs/index.md",
    "docs/tutorial.md",
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how-to").glob("*.md")),
)
PROGRAMS = (
    "airflow", "cdc", "curl", "docker", "helm", "kubectl", "make", "mysqldump", "pip", "podman", "python", "sh", "systemctl",
)  # fmt: skip
"""Programs whose commands stand in blocks that are marked as shell, and in no others."""
_SHELL = ("sh", "console")
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`((?:cdc|airflow) [^`]+)`(?!`)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """One command of a page, which may have several lines."""

    page: str
    text: str
    printed: tuple[str, ...] = ()
    """The output that the page prints below the command."""

    def words(self) -> list[str]:
        """Returns its words, without comments."""
        return shlex.split(self.text, comments=True)


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Returns the fenced blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return tuple(
        Block(
            page,
            match["language"],
            re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE),
            text[: match.start()].count("\n") + 1,
        )
        for match in _BLOCK.finditer(text)
    )


@cache
def commands(page: str) -> tuple[Command, ...]:
    """Returns the commands of a page's shell blocks, in order. A block that begins with ``#!`` is one command."""
    return tuple(command for block in blocks(page) if block.language in _SHELL for command in _split(block))


def python_blocks(page: str) -> list[Block]:
    """Returns the Python blocks of a page."""
    return [block for block in blocks(page) if block.language == "python"]


def _split(block: Block) -> Iterator[Command]:
    if block.text.startswith("#!"):
        yield Command(block.page, block.text)
        return
    lines = block.text.splitlines()
    while lines:
        text = lines.pop(0)
        if block.language == "console":
            printed = []
            while lines and not lines[0].startswith("$ "):
                printed.append(lines.pop(0))
            yield Command(block.page, text.removeprefix("$ "), tuple(printed))
            continue
        while lines and not _is_complete(text):
            text += "\n" + lines.pop(0)
        if text.strip():
            yield Command(block.page, text)


def _is_complete(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return not text.rstrip().endswith(("\\", "|"))


def calls(command: Command, program: str) -> list[list[str]]:
    """Returns the arguments of each call of a program in a command with pipes, ``&&`` and substitutions."""
    texts, argument_lists = [command.text], []
    while texts:
        text = texts.pop(0)
        while (begin := text.find("$(")) >= 0:
            end = begin + 2
            while text[begin + 2 : end].count("(") >= text[begin + 2 : end].count(")") and end < len(text):
                end += 1
            texts.append(text[begin + 2 : end - 1])
            text = f"{text[:begin]}SUBSTITUTED{text[end:]}"
        lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if not re.fullmatch("[|&;<>]+", word):
                words.append(word)
                continue
            while words and re.match(r"\w+=", words[0]):
                words.pop(0)
            if words[:1] == [program]:
                argument_lists.append(words[1:])
            words = []
    return argument_lists


def spans(page: str) -> Iterator[str]:
    """Returns the commands that stand in a page's sentences."""
    prose = _BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for code in _CODE.findall(prose):
        yield " ".join(code.split())


@cache
def _root() -> Any:
    return typer.main.get_command(application())


def parse(arguments: Sequence[str], *, is_whole: bool = True) -> None:
    """Parses the arguments of ``cdc`` as the command line does, and runs nothing. ``is_whole``: else required arguments
    may be missing. Raises click's UsageError."""
    command, name, rest = _root(), "cdc", list(arguments)
    parent: Any = None
    while True:
        context = command.make_context(name, [*rest], parent=parent, resilient_parsing=not is_whole)
        if not hasattr(command, "commands"):
            if not is_whole:
                _require_options(command, rest)
            return
        rest = [*context._protected_args, *context.args]
        if not rest:
            if is_whole:
                context.fail("a command is missing")
            return
        if rest[0] not in command.commands:
            raise ValueError(f"{context.command_path} has no command {rest[0]}")
        name, command, rest = command.resolve_command(context, rest)
        parent = context


def _require_options(command: Any, words: Sequence[str]) -> None:
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word.partition("=")[0] not in names | {"--help"}]
    if unknown:
        raise ValueError(f"cdc {command.name} has no option {', '.join(unknown)}")


def shape(line: str) -> re.Pattern[str]:
    """Returns what a printed line looks like, with other numbers, times, names of files and positions."""
    words = [
        r"\S+" if re.search(r"[\d…]", word) else re.escape(word)
        for word in re.split(r"(\s+)", line.strip())
        if not word.isspace()
    ]
    return re.compile(r"\s+".join(words))
