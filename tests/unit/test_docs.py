"""The documentation names files, modules and anchors that exist, and the decisions follow one template."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from tests.field.case import all_cases
from tests.support import decisions, field_page, folders

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "conf" / "README.md", *DOCS.rglob("*.md")],
    key=lambda page: page.relative_to(ROOT).parts,
)
FOLDERS = "cdc|spark_jobs|dags|docs|tests|scripts|examples|benchmarks|requirements"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(rf"(?:{FOLDERS})/[\w./*-]*|\.(?:ci|github)/[\w./-]+")
NAME = re.compile(r"cdc(?:\.\w+)+")
DOCUMENT = re.compile(r"docs/(?:decisions/(?P<decision>\d{4})|[\w/.-]+\.(?:md|json|svg)|[\w-]+(?:/[\w-]+)*)")
TROUBLESHOOTING = DOCS / "how-to" / "troubleshooting.md"
TEMPLATE = DOCS / "decisions" / "template.md"


def relative(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings)


@cache
def tracked() -> list[str]:
    """The repository's files, as git knows them, and those that are new."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


@cache
def texts() -> list[str]:
    """The texts in the package's code; what an f-string fills in is left out."""
    documentation = []
    for name in tracked():
        if name.endswith(".py") and name.startswith("cdc/"):
            for node in ast.walk(ast.parse((ROOT / name).read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (str(value.value) for value in node.values if isinstance(value, ast.Constant))
                    documentation.append("\0".join(parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    documentation.append(node.value)
    return documentation


def quoted_messages() -> list[str]:
    """The messages of the troubleshooting page: what its first columns quote, with … for what varies."""
    rows = [line for line in TROUBLESHOOTING.read_text().splitlines() if line.startswith("|")]
    return [code for row in rows for code in CODE.findall(row.split("|")[1]) if " " in code]


def is_said(message: str) -> bool:
    """Whether one text of the code has all fixed parts of the message."""
    parts = [part.strip() for part in message.split("…") if len(part.strip()) > 2]
    return any(all(part in text for part in parts) for text in texts())


def missing_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        lost = bool(anchor) and target.suffix == ".md" and target.exists() and anchor not in anchors(target)
        if lost or not target.exists():
            yield link


def module_of(name: str) -> tuple[Path, list[str]] | None:
    """The file of the longest module that begins a dotted name, and what follows; None without such a module."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        if place.with_suffix(".py").is_file():
            return place.with_suffix(".py"), parts[length:]
        if (place / "__init__.py").is_file():
            return place / "__init__.py", parts[length:]
    return None


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or a word in the module that it begins with."""
    place = module_of(name)
    if place is None:
        return False
    file, names = place
    return not names or bool(re.search(rf"\b{re.escape(names[0])}\b", file.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert list(missing_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    words = (word.partition("::")[0] for code in CODE.findall(page.read_text()) for word in code.split())
    named = {match[0] for word in words if (match := PATH.fullmatch(word))}
    assert [path for path in sorted(named) if not any(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_name_of_the_package_that_a_page_names_exists(page: Path) -> None:
    named = {match[0] for code in CODE.findall(page.read_text()) if (match := NAME.match(code))}
    assert [name for name in sorted(named) if not exists(name)] == []


def test_the_layout_of_the_architecture_is_the_repositorys() -> None:
    """Each line of the page's tree is a file or a folder, below the one that is indented less."""
    page = (DOCS / "concepts" / "architecture.md").read_text()
    match = re.search(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert match
    above: list[tuple[int, Path]] = [(-1, ROOT)]
    for line in match[1].splitlines():
        indent = len(line) - len(line.lstrip())
        while above[-1][0] >= indent:
            above.pop()
        place = above[-1][1] / line.split()[0]
        assert place.exists(), line
        above.append((indent, place))


def test_every_document_that_the_code_names_exists() -> None:
    missing = []
    for name in tracked():
        if not name.endswith((".py", ".toml", ".sh", ".yaml", ".yml", "Makefile")) or name == relative(Path(__file__)):
            continue
        for reference in DOCUMENT.finditer((ROOT / name).read_text()):
            pattern = f"{reference[0]}-*.md" if reference["decision"] else reference[0]
            if not any(ROOT.glob(pattern)):
                missing.append(f"{name}: {reference[0]}")
    assert missing == []


@pytest.mark.parametrize("message", quoted_messages())
def test_a_message_that_is_explained_is_one_of_the_code(message: str) -> None:
    """If this fails, the message was changed: change the page of troubleshooting, too."""
    assert is_said(message)


def test_a_message_that_nobody_raises_is_found() -> None:
    assert not is_said("the moon is … full")


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_lines_end_before_column_121(page: Path) -> None:
    """Tables and lines of one word (a link, a path) may be longer."""
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [number for number, line in lines if len(line) > 120 and not line.startswith("|") and " " in line.strip()]
    assert long == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [record.number for record in decisions.records()]
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert [record.path.name for record in decisions.records() if not record.path.name.startswith(record.number)] == []


@pytest.mark.parametrize("record", decisions.records(), ids=lambda record: record.number)
def test_a_decision_follows_the_template(record: decisions.Record) -> None:
    assert record.sections == decisions.SECTIONS
    assert re.fullmatch(r"proposed|accepted|replaced (?:in part )?by \[\d{4}\]\(.+\)", record.status)
    assert record.area in decisions.AREAS
    assert date.fromisoformat(record.date) >= date(2026, 11, 21)
    assert not record.title.endswith(".")


def test_the_template_has_these_sections() -> None:
    assert re.findall(r"^## (.+)$", TEMPLATE.read_text(), re.MULTILINE) == decisions.SECTIONS


def test_the_picture_of_the_folders_is_current() -> None:
    """If this fails: python -m tests.support.folders"""
    assert folders.PICTURE.read_text() == folders.picture()
    assert len(folders.layers()) > 15


def test_the_page_of_the_fields_reports_is_current() -> None:
    """If this fails: python -m tests.support.field_page"""
    assert len(all_cases()) >= 40
    assert field_page.PAGE.read_text(encoding="utf-8") == field_page.page()


def test_the_table_of_decisions_is_complete() -> None:
    """If this fails: python -m tests.support.decisions"""
    assert decisions.INDEX.read_text() == decisions.page(decisions.INDEX.read_text())


@pytest.mark.parametrize(
    ("name", "is_there"),
    [
        ("cdc.base.errors", True),
        ("cdc.base.errors.ConfigError", True),
        ("cdc.base.errors.NoSuchError", False),
        ("cdc.nowhere", False),
        ("nowhere.at_all", False),
    ],
)
def test_a_name_is_looked_up(name: str, is_there: bool) -> None:
    assert exists(name) is is_there
