"""The documentation's site in a real browser (Chromium): on a desk and on a telephone, without the network.

The screenshots stay in the test's folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

from tests.support.browsers import WCAG, chromium, set_mode, set_size, tab_through, violations

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
DESK, TELEPHONE = 1400, 390
PICTURES = ("index", "tutorial", "how-to/verify", "reference/settings/source", "reference/ddl")
_LOOK = """
return {
  width: document.documentElement.scrollWidth,
  code: [...document.querySelectorAll("pre > code")].filter(c => c.scrollWidth > c.clientWidth + 1).map(c => c.innerText),
  names: [...document.querySelectorAll("td:first-child code")].filter(c => c.getClientRects().length > 1).map(c => c.innerText),
  others: performance.getEntriesByType("resource").map(r => r.name).filter(name => !name.startsWith("file:")),
}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [str(Path(sys.executable).with_name("mkdocs")), "build", "--strict", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_every_page_fits_its_window(site: Path, browser: Chrome, tmp_path: Path, width: int) -> None:
    set_size(browser, width)
    pages = sorted(page for page in site.rglob("*.html") if page.name != "404.html")
    assert len(pages) > 200
    faults: dict[str, Any] = {}
    for page in pages:
        name = str(page.relative_to(site).with_suffix(""))
        browser.get(page.as_uri())
        seen = browser.execute_script(_LOOK)
        if name in PICTURES:
            picture = tmp_path / f"{name.replace('/', '-')}-{width}.png"
            picture.write_bytes(browser.get_screenshot_as_png())
        wrong = {
            "wider than the window": seen["width"] > width,
            "broken names": seen["names"],
            "from the network": seen["others"],
            "code with a scroll bar": width == DESK and not name.startswith("decisions/") and seen["code"],
        }
        if any(wrong.values()):
            faults[name] = {what: fault for what, fault in wrong.items() if fault}
    assert faults == {}


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_pages_break_no_rule_of_wcag(site: Path, browser: Chrome, tmp_path: Path, width: int, mode: str) -> None:
    """Some of the theme's landmarks have no names of their own, which is a good practice only."""
    set_size(browser, width)
    set_mode(browser, mode)
    faults = {}
    for name in PICTURES:
        browser.get((site / f"{name}.html").as_uri())
        browser.execute_script("localStorage.clear()")  # the colours that were chosen
        browser.refresh()
        (tmp_path / f"{name.replace('/', '-')}.png").write_bytes(browser.get_screenshot_as_png())
        scheme = browser.execute_script("return document.body.dataset.mdColorScheme")
        assert scheme == ("slate" if mode == "dark" else "default")
        faults[name] = violations(browser, WCAG)
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_one_sees_where_the_focus_is(site: Path, browser: Chrome) -> None:
    set_size(browser, DESK)
    browser.get((site / "how-to" / "verify.html").as_uri())
    stops = tab_through(browser)
    assert len(stops) > 50
    assert [name for name, is_seen in stops if not is_seen] == []
