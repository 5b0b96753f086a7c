"""The page for users of Canal, Flume and RocketMQ keeps its word: each rule has its tests, or the decision it names.

A test says which rules it shows with ``@pytest.mark.rule("canal-ring-11")``; ``tests/contract/rules.py`` says it for the
contract suites. Test files are parsed and not imported: a class's tests are its own and those of its bases.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.contract.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "contributing" / "coming-from.md"
HEADER = re.compile(r"\| id \| rule in (Canal|Flume|RocketMQ) \| here \|")
RULE_ID = re.compile(r"`([a-z]+(?:-[a-z]+)*-\d+)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
DECISION = re.compile(r"\[(\d{4})\]\((?:\.\./)*decisions/(\d{4})-[\w-]+\.md\)")


@dataclass(frozen=True)
class Row:
    line: int
    system: str
    id: str
    rule: str
    here: str

    @property
    def answer(self) -> str:
        """Same, Differs or Not there."""
        match = re.match(r"Same|Differs|Not there", self.here)
        assert match, f"line {self.line} says neither Same nor Differs nor Not there: {self.here}"
        return match[0]


def rows_of(text: str) -> Iterator[Row]:
    """The rows of all tables. Raises AssertionError for a line that is not a row."""
    system = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("|"):
            system = None
        elif header := HEADER.fullmatch(line):
            system = header[1]
        elif set(line) <= set("|- "):
            assert system, f"line {number}: a table without the known header"
        else:
            cells = [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
            assert system and len(cells) == 3, f"line {number} is no row of three cells under the known header"
            match = RULE_ID.fullmatch(cells[0])
            assert match, f"line {number} begins with no rule id: {cells[0]}"
            yield Row(number, system, match[1], *cells[1:])


ROWS = list(rows_of(PAGE.read_text()))


@cache
def module(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in module(path).body if isinstance(node, ast.ClassDef)}


def bases(path: Path, node: ast.ClassDef) -> Iterator[tuple[Path, ast.ClassDef]]:
    """Yields the base classes that are in this repository: in the same file, or imported by name."""
    imported = {
        alias.asname or alias.name: (ROOT / Path(*statement.module.split("."))).with_suffix(".py")
        for statement in module(path).body
        if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level
        for alias in statement.names
    }
    for base in node.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name):
            home = path if name.id in classes(path) else imported.get(name.id)
            if home is not None and home.exists() and name.id in classes(home):
                yield home, classes(home)[name.id]


def lineage(path: Path, node: ast.ClassDef) -> list[ast.ClassDef]:
    """The class, then its bases: who comes first wins."""
    ancestors = [node]
    for home, base in bases(path, node):
        ancestors += lineage(home, base)
    return ancestors


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def needs(test: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Returns the properties that a store must have for this test to be collected, as the contract names them."""
    return [
        str(call.args[0].value)
        for call in test.decorator_list
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "needs"
        if isinstance(call.args[0], ast.Constant)
    ]


def declared(name: str, line: list[ast.ClassDef]) -> object:
    """The value of a class variable."""
    for node in line:
        for statement in node.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if isinstance(statement, ast.AnnAssign):
                targets = [statement.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
                return value.value if isinstance(value, ast.Constant) else None
    return None


def why_missing(named: str, root: Path = ROOT) -> str | None:
    """Why there is no such test; None: there is."""
    path, *names = named.split("::")
    file = root / path
    if not file.exists():
        return f"there is no {path}"
    if not names[-1].startswith("test_"):
        return f"{names[-1]} is no name of a test"
    if len(names) == 1:
        return None if names[0] in functions(module(file).body) else f"{path} has no function {names[0]}"
    if names[0] not in classes(file) or not names[0].startswith("Test"):
        return f"{path} has no test class {names[0]}"
    line = lineage(file, classes(file)[names[0]])
    test = next((function for node in line if (function := functions(node.body).get(names[1]))), None)
    if test is None:
        return f"neither {names[0]} nor its bases have {names[1]}"
    lacks = [need for need in needs(test) if declared(need, line) is not True]
    return f"{names[1]} is not collected for {names[0]}, which is not {lacks[0]}" if lacks else None


def marked(path: Path) -> Iterator[tuple[str, str]]:
    """Rule ids that a file's tests are marked with, each with the test's name."""
    bodies = [("", module(path).body), *((f"{name}::", node.body) for name, node in classes(path).items())]
    for prefix, body in bodies:
        for name, node in functions(body).items():
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.rule":
                    assert name.startswith("test_"), f"{path}: {name} is no test"
                    yield from ((ast.literal_eval(argument), f"{prefix}{name}") for argument in call.args)


@cache
def shown_by() -> dict[str, list[str]]:
    """Returns for each rule id the tests that show it."""
    tests_by_rule: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for rule, name in marked(path):
            tests_by_rule.setdefault(rule, []).append(f"{path.relative_to(ROOT)}::{name}")
    for path in sorted((ROOT / "tests" / "contract").glob("test_*.py")):
        for holder in RULES.keys() & classes(path).keys():
            for name, rules in RULES[holder].items():
                for rule in rules:
                    tests_by_rule.setdefault(rule, []).append(f"{path.relative_to(ROOT)}::{holder}::{name}")
    return tests_by_rule


def test_all_three_systems_are_there() -> None:
    count = {system: sum(row.system == system for row in ROWS) for system in ("Canal", "Flume", "RocketMQ")}
    assert min(count.values()) >= 20, count
    rules = [(row.system, row.rule) for row in ROWS]
    assert len(set(rules)) == len(rules), "a rule is listed twice"
    assert len({row.id for row in ROWS}) == len(ROWS), "a rule id is used twice"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_row_has_its_tests_or_its_decision(row: Row) -> None:
    decisions = DECISION.findall(row.here)
    assert all(shown == number for shown, number in decisions), "the number shown is not the file's"
    if row.answer != "Same":
        assert decisions, "what differs, or is not there, needs a decision"
    if row.answer != "Not there":
        assert row.id in shown_by(), "what is the same, or differs, needs a test"


def test_each_marker_has_its_row() -> None:
    assert shown_by().keys() - {row.id for row in ROWS} == set()


def test_each_marked_contract_test_is_collected() -> None:
    holders = {name for path in (ROOT / "tests" / "contract").glob("test_*.py") for name in classes(path)}
    assert RULES.keys() - holders == set()
    named = [test for tests in shown_by().values() for test in tests]
    assert [why for test in named if (why := why_missing(test))] == []


def test_the_first_pages_link_to_it() -> None:
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert any((page.parent / link).resolve() == PAGE for link in LINK.findall(page.read_text())), page


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("tests/unit/test_nowhere.py::test_x", "there is no tests/unit/test_nowhere.py"),
        ("tests/unit/event_store/channel/test_channel.py::test_nothing", "has no function test_nothing"),
        ("tests/unit/event_store/channel/test_channel.py::channel", "is no name of a test"),
        ("tests/contract/test_store_memory.py::TestNo::test_try_get_does_not_wait", "has no test class TestNo"),
        ("tests/contract/test_store_memory.py::TestItemsize::test_no", "neither TestItemsize nor its bases have"),
        # In the suite, and left out where a store says that it has no part in it: inherited declarations count.
        ("tests/contract/test_store_file.py::TestSync::test_try_put_does_not_wait", "which is not limited"),
        ("tests/contract/test_store_file.py::TestAsync::test_try_put_does_not_wait", "which is not limited"),
        (
            "tests/contract/test_store_memory.py::TestMemsize::test_what_was_put_is_there_after_reopening",
            "which is not durable",
        ),
    ],
)
def test_a_name_without_a_test_is_found(named: str, why: str) -> None:
    assert why in (why_missing(named) or "")


@pytest.mark.parametrize(
    "named",
    [
        "tests/unit/event_store/channel/test_channel.py::test_counters",
        "tests/contract/test_store_memory.py::TestMemsize::test_try_put_does_not_wait",
        "tests/contract/test_store_file.py::TestAsync::test_what_was_put_is_there_after_reopening",
        "tests/contract/test_meta_file.py::TestFile::test_where_a_get_starts",  # of a base's base
    ],
)
def test_a_name_with_a_test_is_found(named: str) -> None:
    assert why_missing(named) is None


@pytest.mark.parametrize(
    "table",
    [
        "| id | rule |\n|---|---|\n| `x-1` | b |",
        "| id | rule in Canal | here |\n|---|---|---|\n| `x-1` | b |",
        "| id | rule in Canal | here |\n|---|---|---|\n| a rule | Same | c |",
        "| id | rule in Canal | here |\n|---|---|---|\n\n| `x-1` | a | Same |",
    ],
)
def test_what_is_no_row_is_found(table: str) -> None:
    with pytest.raises(AssertionError):
        list(rows_of(table))
