"""The page of a server in a real browser (Chromium): by keyboard, on a telephone, in dark mode, and without scripts.

The screenshots stay in the test's folder.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import presence_of_element_located, url_to_be
from selenium.webdriver.support.wait import WebDriverWait

from cdc.batches.service import BatchService
from cdc.server import EmbeddedServer
from cdc.testing.servers import PASSWORD, Server
from tests.support.alarms import wait_until
from tests.support.instances import OPERATOR, VIEWER, Operator, captures, write

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

EVIL = "<script>document.title='hacked'</script>"
ROLES = {"operator": {"env": "TOWPATH_OPERATOR"}, "viewer": {"env": "TOWPATH_VIEWER"}}
SIZES = {"telephone": (390, 844), "desk": (1280, 900)}


@dataclass
class Setup:
    server: EmbeddedServer
    browser: Chrome
    folder: Path

    def wait(self, condition: object) -> None:
        WebDriverWait(self.browser, 30).until(condition)  # type: ignore[arg-type]

    def log_in(self, token: str) -> None:
        """Logs in by the keyboard alone: the field has the focus."""
        self.browser.delete_all_cookies()
        self.browser.get(self.server.url)
        self.wait(url_to_be(f"{self.server.url}/login"))
        self.browser.switch_to.active_element.send_keys(token, Keys.ENTER)
        self.wait(presence_of_element_located((By.CSS_SELECTOR, "div.cards, [role=alert]")))

    def texts(self, selector: str) -> list[str]:
        return [one.text for one in self.browser.find_elements(By.CSS_SELECTOR, selector)]

    def picture(self, name: str) -> None:
        (self.folder / f"{name}.png").write_bytes(self.browser.get_screenshot_as_png())


@pytest.fixture(scope="module")
def setup(mysql9: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("page")
    for name, value in (
        ("TOWPATH_TEST_PASSWORD", PASSWORD), ("TOWPATH_OPERATOR", OPERATOR), ("TOWPATH_VIEWER", VIEWER),
    ):  # fmt: skip
        patch.setenv(name, value)
    database = f"page_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}", f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)")
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium: run scripts/need-chromium.sh"
    for word in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
        "disable-component-update", "disable-sync", "window-size=1280,900", f"user-data-dir={folder / 'chromium'}",
        "blink-settings=scriptEnabled=false",
    ):  # fmt: skip
        options.add_argument(f"--{word}")
    browser = Chrome(options, Service(shutil.which("chromedriver") or "chromedriver"))
    write(folder / "conf", "shop", mysql9, database, capture="always", scan_s=0.2, roles=ROLES)
    write(folder / "conf", "idle", mysql9, database)
    (folder / "conf" / "broken.yaml").write_text(f'source: {{url: "mysql://u@h:1", x: "{EVIL}"}}\n')
    try:
        with EmbeddedServer(folder / "conf", http=0) as server:
            Operator(server.url, OPERATOR).wait("shop", captures)
            state = folder / "data" / "shop" / "store" / "capture.json"
            wait_until(lambda: state.exists() and b'"connected": true' in state.read_bytes(), "capture", 60)
            mysql9.execute(f"CREATE TABLE {database}.`{EVIL}` (id INT PRIMARY KEY)")
            mysql9.execute(f"INSERT INTO {database}.`{EVIL}` VALUES (1)", f"INSERT INTO {database}.orders VALUES (1)")
            config = next(instance.config for instance in server.instances if instance.name == "shop")
            assert BatchService(config).get(f"cli:{EVIL}", wait_s=20) is not None
            yield Setup(server, browser, folder)
    finally:
        browser.quit()
        mysql9.execute(f"DROP DATABASE {database}")
        patch.undo()


def test_a_wrong_token(setup: Setup) -> None:
    setup.log_in("wrong")
    assert setup.texts("[role=alert]") == ["This token is none of this server's roles."]


def test_a_viewer_has_no_buttons_that_act(setup: Setup) -> None:
    setup.log_in(VIEWER)
    assert setup.texts("section.card h2") == ["broken", "idle", "shop"]
    assert "unserved" in setup.texts("section.card .state")
    assert any("no subscriber has a token" in text for text in setup.texts("section.card p"))
    assert setup.texts("button") == ["Log out"]
    assert "running" in setup.texts("section.card .state")
    setup.browser.find_element(By.LINK_TEXT, "shop").click()
    setup.wait(presence_of_element_located((By.CSS_SELECTOR, "pre.log, #log")))
    assert setup.texts("button") == ["Log out"]


def test_an_operator_stops_and_starts_by_the_keyboard(setup: Setup) -> None:
    setup.log_in(OPERATOR)
    setup.browser.get(f"{setup.server.url}/instances/shop")
    assert setup.texts(".actions button, .actions summary") == ["Restart", "Stop …", ""], "Stop asks once"
    for text in ("Stop …", "Stop shop"):
        for _ in range(20):
            setup.browser.switch_to.active_element.send_keys(Keys.TAB)
            focused = setup.browser.switch_to.active_element
            if focused.text == text:
                break
        assert focused.value_of_css_property("outline-style") == "solid", "one sees where the focus is"
        focused.send_keys(Keys.ENTER)
    setup.wait(lambda browser: setup.texts(".state") == ["stopped"])
    assert Operator(setup.server.url, VIEWER).one("shop")["state"] == "stopped"
    setup.browser.find_element(By.XPATH, "//button[text()='Start']").click()
    Operator(setup.server.url, VIEWER).wait("shop", captures)
    setup.browser.get(f"{setup.server.url}/instances/shop")
    assert setup.texts(".actions button, .actions summary") == ["Restart", "Stop …", ""]


def test_names_of_others_are_text(setup: Setup) -> None:
    setup.log_in(VIEWER)
    setup.browser.get_log("browser")  # type: ignore[no-untyped-call]
    setup.browser.get(f"{setup.server.url}/instances/shop")
    body = setup.browser.find_element(By.TAG_NAME, "body").text
    assert body.count(EVIL) >= 2, "a table and an owner"
    assert setup.browser.title == "shop – Towpath"
    assert setup.browser.find_elements(By.TAG_NAME, "script") == []
    assert setup.browser.get_log("browser") == []  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", ["/", "/instances/shop", "/login"])
def test_it_is_readable(setup: Setup, path: str, size: str, mode: str) -> None:
    width, height = SIZES[size]
    browser = setup.browser
    setup.log_in(OPERATOR)
    command = browser.execute_cdp_cmd
    command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]})
    values = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "telephone"}
    command("Emulation.setDeviceMetricsOverride", values)
    try:
        browser.get(setup.server.url + path)
        page = command("Page.getLayoutMetrics", {})["cssContentSize"]
        assert page["width"] <= width, "nothing has to be scrolled sideways"
        for one in browser.find_elements(By.CSS_SELECTOR, "button, input[type=password]"):
            if one.is_displayed():
                assert one.size["height"] >= 36, "a finger hits it"
                assert one.location["x"] + one.size["width"] <= width
        ground = browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        light = sum(int(part) for part in ground.removeprefix("rgba(").split(",")[:3])
        assert (light < 200) if mode == "dark" else (light > 600), ground
        setup.picture(f"{path.strip('/').replace('/', '-') or 'all'}-{size}-{mode}")
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})
