"""Golden tests of capture: ``tests/golden/sql/NAME.sql`` is executed on real servers, and the store must hold what
``NAME.txt`` says.

``TOWPATH_GOLDEN_WRITE=1`` writes the texts anew, from the first server that each file names; look at the difference
before committing it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.capture import Capture
from cdc.testing.servers import Server
from tests.servers.capture.test_capture import configure, position
from tests.support.golden_sql import Script, scripts, texts
from tests.support.versions import lacks, needs

WRITE = os.environ.get("TOWPATH_GOLDEN_WRITE") == "1"
SCRIPTS = scripts()
_DDL = re.compile(r"(CREATE|ALTER|RENAME|DROP|TRUNCATE)\b", re.IGNORECASE)
CASES = [pytest.param(script, kind, id=f"{script.name}-{kind}") for script in SCRIPTS for kind in script.servers]


@pytest.fixture(scope="module")
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Returns a function that executes all scripts of a kind of server, once, and returns the texts of the store."""
    texts_by_kind: dict[str, dict[str, str]] = {}
    tried: set[str] = set()

    def get(kind: str) -> dict[str, str]:
        if kind not in tried:
            tried.add(kind)
            server: Server = request.getfixturevalue(kind)
            texts_by_kind[kind] = run_all(server, tmp_path_factory.mktemp(kind))
        assert kind in texts_by_kind, f"the scripts failed on {kind}, see its first test"
        return texts_by_kind[kind]

    return get


def run_all(server: Server, folder: Path) -> dict[str, str]:
    kind = server.kind.name
    without_metadata = kind == "mysql56"
    start = "now" if without_metadata else position(server)
    config = configure(folder, server, r"golden_\w+", start=start)
    if without_metadata:
        Capture(config).run(until_current=True)
    for script in SCRIPTS:
        if kind not in script.servers or any(lacks(kind, feature) for feature in script.features):
            continue
        altered = False
        for statement in script.run(server):
            if _DDL.match(statement):
                altered = True
            elif altered and without_metadata:
                # Its definitions are those at the moment at which capture reads a statement (docs/decisions/0026).
                Capture(config).run(until_current=True)
                altered = False
    Capture(config).run(until_current=True)
    text_by_script = texts(config.store.path)
    server.execute(*[f"DROP DATABASE {script.database}" for script in SCRIPTS if script.name in text_by_script])
    return text_by_script


@pytest.mark.parametrize(("script", "kind"), CASES)
def test_the_store_holds(script: Script, kind: str, stored: Callable[[str], dict[str, str]]) -> None:
    for feature in script.features:
        needs(kind, feature)
    text = stored(kind)[script.name]
    if WRITE and kind == script.servers[0]:
        script.expected.write_text(text, encoding="utf-8")
    assert text == script.expected.read_text(encoding="utf-8")


def test_every_text_has_its_script() -> None:
    folder = SCRIPTS[0].expected.parent
    assert {path.stem for path in folder.iterdir()} == {script.name for script in SCRIPTS}
    assert all(script.expected.exists() for script in SCRIPTS)
