"""The documentation's site in a real browser (Chromium): on a desk and on a telephone, without the network.

The screenshots stay in the test's folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

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
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium: run scripts/need-chromium.sh"
    for word in ("headless", "no-sandbox", "disable-gpu", f"user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(f"--{word}")
    browser = Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    yield browser
    browser.quit()


@pytest.mark.parametrize("width", [DESK, TELEPHONE])
def test_every_page_fits_its_window(site: Path, browser: Chrome, tmp_path: Path, width: int) -> None:
    values = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width == TELEPHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", values)
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
