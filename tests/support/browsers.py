"""Chromium for tests of pages: its sizes and modes, and axe-core, which examines a page for people who see, hear or move
otherwise than most."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from cdc.testing.servers.packages import NpmPackage, fetch

_AXE = NpmPackage(
    "axe-core",
    "4.14.1",
    "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==",
    "axe.min.js",
)
WCAG = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa")
ALL_RULES = (*WCAG, "best-practice")
"""WCAG 2.2, A and AA, and good practice such as landmarks."""
_RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {runOnly: arguments[0], resultTypes: ["violations"]}).then(
  found => done(found.violations.map(v => v.id + ": " + v.nodes.slice(0, 5).map(n => n.html.slice(0, 160) + " " +
    n.any.concat(n.all).map(c => c.message).join("; ")).join(" | "))), error => done(["axe failed: " + error]));
"""


@contextmanager
def chromium(folder: Path, *switches: str) -> Iterator[Chrome]:
    """Runs Chromium without a window, with a profile in ``folder``."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium: run scripts/need-chromium.sh"
    for switch in ("headless", "no-sandbox", "disable-gpu", f"user-data-dir={folder / 'chromium'}", *switches):
        options.add_argument(f"--{switch}")
    browser = Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    try:
        yield browser
    finally:
        browser.quit()


def set_size(browser: Chrome, width: int, height: int = 1000) -> None:
    """Lets the window be this wide; a narrow one is a telephone."""
    values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)


def set_mode(browser: Chrome, mode: str) -> None:
    """Lets the person prefer ``light`` or ``dark``."""
    features = [{"name": "prefers-color-scheme", "value": mode}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


@cache
def _axe() -> str:
    return (fetch(f"axe-core-{_AXE.version}", _AXE) / _AXE.proof).read_text(encoding="utf-8")


def violations(browser: Chrome, rules: Sequence[str] = ALL_RULES) -> list[str]:
    """Returns what on the page breaks one of the rules."""
    browser.execute_script(_axe())
    broken_rules: list[str] = browser.execute_async_script(_RUN, list(rules))
    return broken_rules


_OUTLINE = """
const element = document.activeElement, shown = element.matches("input.md-option") ? element.nextElementSibling : element;
const style = getComputedStyle(shown);
const seen = style.outlineStyle != "none" && parseFloat(style.outlineWidth) > 0 || style.boxShadow != "none";
const name = element.innerText || element.getAttribute("aria-label") || element.id || element.tagName;
return element == document.body ? null : [name.trim(), seen];
"""


def tab_through(browser: Chrome, most: int = 200) -> list[tuple[str, bool]]:
    """Presses Tab until the focus has been on every element. Returns each with whether one sees the focus."""
    stops: list[tuple[str, bool]] = []
    browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    for _ in range(most):
        browser.execute_cdp_cmd(
            "Input.dispatchKeyEvent", {"type": "keyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        )
        stop: Any = browser.execute_script(_OUTLINE)
        if stop is None:
            break
        stops.append(tuple(stop))
    return stops
