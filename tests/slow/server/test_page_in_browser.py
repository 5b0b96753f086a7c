"""The page of a server in a real browser (Chromium): by keyboard, on a telephone, in dark mode, and without scripts.

The screenshots stay in the test's folder.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import presence_of_element_located, url_to_be
from selenium.webdriver.support.wait import WebDriverWait

from cdc.batches.manifest import TableResult
from cdc.batches.parking import park
from cdc.batches.service import BatchService
from cdc.meta import ParkedTable
from cdc.server import EmbeddedServer
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import PASSWORD, Server
from cdc.watch.page.board import Board
from cdc.watch.page.charts import throughput_chart
from cdc.watch.page.render import destination, overview
from tests.support.alarms import wait_until
from tests.support.browsers import chromium, set_mode, set_size, tab_through, violations
from tests.support.commit_times import fill
from tests.support.instances import OPERATOR, VIEWER, Operator, captures, write
from tests.support.unit_batches import IDENTITY, make_config
from tests.unit.watch.page.test_pages import Links

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

EVIL = "<script>document.title='hacked'</script>"
ROLES = {"operator": {"env": "TOWPATH_OPERATOR"}, "viewer": {"env": "TOWPATH_VIEWER"}}
SWITCHES = (
    "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync",
    "window-size=1280,900", "blink-settings=scriptEnabled=false",
)  # fmt: skip
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
        self.browser.get(f"{self.server.url}/login")  # the cookies of this place are deleted
        self.browser.delete_all_cookies()
        self.browser.get(self.server.url)
        self.wait(url_to_be(f"{self.server.url}/login"))
        self.browser.switch_to.active_element.send_keys(token, Keys.ENTER)
        self.wait(presence_of_element_located((By.CSS_SELECTOR, "div.cards, [role=alert]")))

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.browser.find_elements(By.CSS_SELECTOR, selector)]

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
    write(folder / "conf", "shop", mysql9, database, capture="always", scan_s=0.2, roles=ROLES)
    write(folder / "conf", "idle", mysql9, database)
    (folder / "conf" / "broken.yaml").write_text(f'source: {{url: "mysql://u@h:1", x: "{EVIL}"}}\n')
    try:
        with EmbeddedServer(folder / "conf", http=0) as server, chromium(folder, *SWITCHES) as browser:
            Operator(server.url, OPERATOR).wait("shop", captures)
            state = folder / "data" / "shop" / "store" / "capture.json"
            wait_until(lambda: state.exists() and b'"connected": true' in state.read_bytes(), "capture", 60)
            mysql9.execute(f"CREATE TABLE {database}.`{EVIL}` (id INT PRIMARY KEY)")
            mysql9.execute(f"INSERT INTO {database}.`{EVIL}` VALUES (1)", f"INSERT INTO {database}.orders VALUES (1)")
            config = next(instance.config for instance in server.instances if instance.name == "shop")
            assert BatchService(config).get(f"cli:{EVIL}", wait_s=20) is not None
            yield Setup(server, browser, folder)
    finally:
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
    set_mode(browser, mode)
    set_size(browser, width, height)
    try:
        browser.get(setup.server.url + path)
        page = command("Page.getLayoutMetrics", {})["cssContentSize"]
        assert page["width"] <= width, "nothing has to be scrolled sideways"
        for element in browser.find_elements(By.CSS_SELECTOR, "button, input[type=password]"):
            if element.is_displayed():
                assert element.size["height"] >= 36, "a finger hits it"
                assert element.location["x"] + element.size["width"] <= width
        ground = browser.find_element(By.TAG_NAME, "body").value_of_css_property("background-color")
        light = sum(int(part) for part in ground.removeprefix("rgba(").split(",")[:3])
        assert (light < 200) if mode == "dark" else (light > 600), ground
        setup.picture(f"{path.strip('/').replace('/', '-') or 'all'}-{size}-{mode}")
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})


@pytest.fixture(scope="module")
def with_scripts(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """Another browser, in which axe-core runs."""
    folder = tmp_path_factory.mktemp("axe")
    with chromium(folder) as browser:
        yield Setup(setup.server, browser, folder)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_pages_break_no_rule_of_wcag(with_scripts: Setup, width: int, mode: str) -> None:
    """The pages of the server, and the content of the pages of Airflow's plugin, with charts and tables."""
    browser = with_scripts.browser
    set_mode(browser, mode)
    set_size(browser, width)
    with_scripts.log_in(OPERATOR)
    addresses = [f"{with_scripts.server.url}{path}" for path in ("/", "/instances/shop", "/instances/none", "/login")]
    for name, page in plugin_pages(with_scripts.folder / "plugin").items():
        file = with_scripts.folder / f"{name}.html"
        file.write_text(page)
        addresses.append(file.as_uri())
    faults = {}
    for number, address in enumerate(addresses):
        browser.get(address)
        with_scripts.picture(f"{number}-{width}-{mode}")
        faults[address] = violations(browser)
    assert {address: fault for address, fault in faults.items() if fault} == {}


def plugin_pages(folder: Path) -> dict[str, str]:
    """Returns pages of a destination with batches, charts, an outstanding batch and a parked table."""
    folder.mkdir(exist_ok=True)
    config = make_config(folder)
    if not config.store.path.exists():
        fill(config.store.path, list(range(1, 8)))
        service = BatchService(config)
        service.meta.bind_source(IDENTITY)
        for _ in range(4):
            lease = service.get("test", limits=Limits(max_transactions=1), wait_s=0)
            assert lease is not None
            results = [
                TableResult(table=name, inserted=5, delta_version=3, delta_id="x", applied_seq=lease.manifest.last_seq)
                for name in ("shop.orders", "shop.items")
            ]
            service.ack(lease.batch, lease.token, results=results)
        parked = ParkedTable(due="snapshot", reason="it failed", since=datetime.now(UTC))
        park(service.meta, "apply", "shop.items", parked)
        assert service.get("elsewhere", limits=Limits(max_transactions=1), wait_s=0) is not None
    rows = Board().rows([config.file], batches=True)
    assert throughput_chart(rows[0].batches, time.time()) is not None
    return {"all": overview(rows, Links(), "n", folder=""), "one": destination(rows[0], Links(), "n")}


@pytest.mark.parametrize("path", ["/", "/instances/shop"])
def test_every_action_is_reached_by_the_keyboard(with_scripts: Setup, path: str) -> None:
    browser = with_scripts.browser
    with_scripts.log_in(OPERATOR)
    browser.get(with_scripts.server.url + path)
    actions = [
        element.get_attribute("aria-label") or element.text
        for element in browser.find_elements(By.CSS_SELECTOR, "a, button, summary, pre.log")
        if element.is_displayed()
    ]
    stops = tab_through(browser)
    assert len(stops) == len(actions) > 3
    assert [name for name, is_seen in stops if not is_seen] == []
