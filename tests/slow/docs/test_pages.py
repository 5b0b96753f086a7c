"""The commands of the tutorial, the how-to pages and the READMEs, run as they are printed, page by page, on a real source,
store and lake."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.testing.servers import Server
from tests.support.configurations import server_id_of
from tests.support.page_commands import commands, python_blocks
from tests.support.page_runs import PageRun, run_page, write_destination
from tests.support.page_table import PAGES, PYTHON

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

TABLES = (
    "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(40), credit DECIMAL(8,2), age SMALLINT)",
    "CREATE TABLE orders (id INT PRIMARY KEY AUTO_INCREMENT, status VARCHAR(10), total DECIMAL(10,2))",
    "CREATE TABLE items (id INT PRIMARY KEY, orders INT)",
    "CREATE TABLE people (id INT PRIMARY KEY AUTO_INCREMENT, name VARCHAR(40))",
)
ROWS = (
    "INSERT INTO customers VALUES (1, 'Ada', 10.50, 36), (2, 'Grace', 0, 85)",
    "INSERT INTO orders VALUES " + ", ".join(f"({number}, 'new', {number})" for number in range(1, 60)),
    "INSERT INTO items VALUES (1, 17)",
    "INSERT INTO people (name) VALUES ('Ada')",
)
CHANGES = (
    "UPDATE orders SET status = 'paid' WHERE id = 42",
    "UPDATE orders SET total = 0 WHERE id = 17",
    "DELETE FROM orders WHERE id = 40",
    "INSERT INTO orders VALUES (9001, 'new', 1)",
)
WITH_COMMANDS = [name for name, page in PAGES.items() if any(not page.step(c).unrun for c in commands(name))]


@pytest.fixture(scope="module")
def source() -> Iterator[Server]:
    with Server("mysql9") as server:
        yield server


@pytest.fixture(scope="module")
def template(source: Server, tmp_path_factory: pytest.TempPathFactory) -> PageRun:
    """A folder with a destination whose tables were filled, and followed some changes."""
    run = PageRun(tmp_path_factory.mktemp("pages"), source)
    source.execute("CREATE DATABASE shop")
    write_destination(run)
    run.sql(*TABLES)
    run.cdc("capture", "shop", "--until-current")
    run.sql(*ROWS)
    run.cdc("capture", "shop", "--until-current")
    run.cdc("snapshot", "shop")
    run.facts = {}
    for statement in CHANGES:
        time.sleep(1.1)  # the source's clock has whole seconds: the points below differ
        run.sql(statement)
    run.cdc("capture", "shop", "--until-current")
    run.cdc("apply", "shop", "--until-empty")
    first = json.loads(run.cdc("history", "shop", "shop.orders", "42", "--json"))[-1]
    last = json.loads(run.cdc("history", "shop", "shop.orders", "9001", "--json"))[-1]
    run.facts = {
        f"{end}_{name}": str(value)
        for end, change in (("first", first), ("last", last))
        for name, value in (
            ("seq", change["seq"]),
            ("time", change["commit_time"]),
            ("gtid", change["gtid"].replace(":", ":1-")),
        )
    }
    return run


def copy(template: PageRun, folder: Path) -> PageRun:
    """Copies the destination, as one of another machine."""
    shutil.copytree(template.folder, folder)
    run = PageRun(folder, template.server)
    run.facts = template.facts
    run.change(source={"server_id": server_id_of(run.file)})
    return run


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_a_page(name: str, template: PageRun, source: Server, tmp_path: Path) -> None:
    page = PAGES[name]
    run = copy(template, tmp_path / "run") if page.is_filled else PageRun(tmp_path / "run", source)
    run.folder.mkdir(exist_ok=True)
    run_page(name, page, run)


@pytest.mark.parametrize("name", sorted({page for (page, _), python in PYTHON.items() if not python.unrun}))
def test_the_python_of_a_page(name: str, template: PageRun, tmp_path: Path) -> None:
    """Its blocks that can run, one after the other."""
    run = copy(template, tmp_path / "run")
    try:
        if name in PAGES and (setup := PAGES[name].setup):
            setup(run)
        for number, block in enumerate(python_blocks(name)):
            python = PYTHON[name, number]
            text = python.prelude + block.text
            for word, fact in python.words:
                text = text.replace(word, template.facts.get(fact, fact))
            if not python.unrun:
                run.program("python", "-c", text)
    finally:
        run.close()
