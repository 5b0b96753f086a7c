"""The pages in a real browser (Chromium), in a real Airflow: in its frame, by themselves, and on a telephone.

This Airflow logs everybody in; tests/dags/test_pages.py has users without a login. The screenshots stay in the test's
folder.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.expected_conditions import (
    frame_to_be_available_and_switch_to_it,
    presence_of_element_located,
    url_contains,
)
from selenium.webdriver.support.wait import WebDriverWait

from cdc.batches.parking import park
from cdc.batches.service import BatchService
from cdc.config import load
from cdc.meta import ParkedTable
from cdc.testing.servers import Server
from tests.fault.support import DELTA_RS
from tests.support.apply import LOCAL, Loop
from tests.support.browsers import chromium
from tests.support.real_airflow import RealAirflow

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

LINKS = """\
airflow:
  links: {{manifest: '{0}/manifest?{{destination}}-{{batch}}', table: '{0}/table?{{db}}-{{table}}'}}
"""
EVIL = "<script>document.title='hacked'</script>"
TELEPHONE = (390, 844)


@dataclass
class Setup:
    airflow: RealAirflow
    browser: Chrome
    folder: Path
    database: str
    elsewhere: str
    """The address of a server that is not Airflow's."""

    def address(self, path: str) -> str:
        return f"http://127.0.0.1:{self.airflow.port}{path}"

    def wait(self, condition: object, limit_s: float = 60) -> None:
        WebDriverWait(self.browser, limit_s).until(condition)  # type: ignore[arg-type]

    def open_frame(self, name: str = "") -> None:
        """Opens the page of all destinations inside Airflow, or that of one."""
        self.browser.switch_to.default_content()
        self.browser.get(self.address("/plugin/towpath"))
        self.wait(frame_to_be_available_and_switch_to_it((By.TAG_NAME, "iframe")))
        self.wait(presence_of_element_located((By.CSS_SELECTOR, "section.card")))
        if name:
            self.browser.find_element(By.LINK_TEXT, name).click()
            self.wait(presence_of_element_located((By.TAG_NAME, "polyline")))

    def picture(self, name: str) -> None:
        (self.folder / f"{name}.png").write_bytes(self.browser.get_screenshot_as_png())


class _Elsewhere(BaseHTTPRequestHandler):
    """Pages of another server, like those of a catalog."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>a page elsewhere</p>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()


@pytest.fixture(scope="module")
def setup(mysql9: Server, elsewhere: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    folder = tmp_path_factory.mktemp("pages")
    database = f"pages_{random.SystemRandom().randrange(2**32):08x}"
    mysql9.execute(f"CREATE DATABASE {database}")
    loop = Loop(folder, mysql9, database, apply=DELTA_RS, spark=LOCAL)
    with loop.config.file.open("a", encoding="utf-8") as file:
        file.write(LINKS.format(elsewhere))
    loop.config = load(loop.config.file)
    loop.sql("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", f"CREATE TABLE `{EVIL}` (id INT PRIMARY KEY)")
    for number in range(8):
        loop.sql(f"INSERT INTO orders VALUES ({number}, 1)")
        loop.capture()
        loop.apply_all()
    loop.sql("INSERT INTO orders VALUES (100, 1)", "UPDATE orders SET v = 2")
    loop.capture()
    service = BatchService(loop.config)
    assert service.get("cli:elsewhere:shop", wait_s=0) is not None
    table = f"{database}.{EVIL}"
    park(service.meta, "apply", table, ParkedTable(due="retry", reason="it failed", since=datetime.now(UTC)))
    text = loop.config.file.read_text()
    (loop.config.file.parent / "unmounted.yaml").write_text(text.replace("shop/", "elsewhere/"))
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "meta").write_text("no folder")
    (loop.config.file.parent / "broken.yaml").write_text("source: {url: 'mysql://u@h:1'}\n")
    airflow = RealAirflow(
        folder / "airflow", loop.config.file.parent, ("apply", "capture"), {"CDC_CONF": str(loop.config.file.parent)}
    )
    switches = (
        "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update", "disable-sync",
        "window-size=1280,900",
    )  # fmt: skip
    try:
        airflow.start(("api-server", "dag-processor"))
        with chromium(folder, *switches) as browser:
            yield Setup(airflow, browser, folder, database, elsewhere)
    finally:
        airflow.stop()
        mysql9.execute(f"DROP DATABASE {database}")


def test_the_page_inside_airflow(setup: Setup) -> None:
    setup.open_frame()
    text = setup.browser.find_element(By.TAG_NAME, "body").text
    assert "not readable" in text and "is missing" in text
    assert "Outstanding batches\n1" in text
    setup.picture("inside")
    setup.open_frame("shop")
    setup.browser.find_element(By.LINK_TEXT, "All destinations").click()
    setup.wait(presence_of_element_located((By.CSS_SELECTOR, "div.cards")))


@pytest.mark.parametrize("page", ["", "shop"], ids=["all", "one"])
@pytest.mark.parametrize(
    ("link", "path"),
    [("apply", "/dags/apply_shop"), ("capture", "/dags/capture_shop"), ("runs", "/dags/apply_shop/runs")],
)
def test_links_to_airflow_open_in_the_whole_window(setup: Setup, page: str, link: str, path: str) -> None:
    setup.open_frame(page)
    if not page:
        (card,) = [
            section
            for section in setup.browser.find_elements(By.CSS_SELECTOR, "section.card")
            if section.find_element(By.TAG_NAME, "h2").text == "shop"
        ]
        card.find_element(By.LINK_TEXT, link).click()
    else:
        setup.browser.find_element(By.LINK_TEXT, link).click()
    setup.browser.switch_to.default_content()
    setup.wait(url_contains(path))
    name = path.split("/")[2]
    setup.wait(lambda browser: name in browser.find_element(By.TAG_NAME, "body").text)
    assert "404" not in setup.browser.find_element(By.TAG_NAME, "body").text
    assert setup.browser.find_elements(By.TAG_NAME, "iframe") == []


@pytest.mark.parametrize(("column", "path"), [("Delta table", "/table?"), ("Batch", "/manifest?shop-")])
def test_links_to_other_servers_open_in_the_whole_window(setup: Setup, column: str, path: str) -> None:
    setup.open_frame("shop")
    setup.browser.find_element(By.CSS_SELECTOR, f"td[data-name='{column}'] a").click()
    setup.browser.switch_to.default_content()
    setup.wait(url_contains(f"{setup.elsewhere}{path}"))
    assert setup.browser.find_element(By.TAG_NAME, "body").text == "a page elsewhere"


@pytest.mark.parametrize("link", ["apply", "elsewhere"])
def test_a_click_with_control_opens_another_window(setup: Setup, link: str) -> None:
    setup.open_frame("shop")
    locator = (By.LINK_TEXT, "apply") if link == "apply" else (By.CSS_SELECTOR, "td[data-name='Batch'] a")
    before = set(setup.browser.window_handles)
    element = setup.browser.find_element(*locator)
    ActionChains(setup.browser).key_down(Keys.CONTROL).click(element).key_up(Keys.CONTROL).perform()
    setup.wait(lambda browser: len(browser.window_handles) == len(before) + 1)
    setup.browser.switch_to.default_content()
    assert "/plugin/towpath" in setup.browser.current_url, "the page stays"
    own = setup.browser.current_window_handle
    (new,) = set(setup.browser.window_handles) - before
    setup.browser.switch_to.window(new)
    setup.wait(url_contains("/dags/apply_shop" if link == "apply" else f"{setup.elsewhere}/manifest?"))
    setup.browser.close()
    setup.browser.switch_to.window(own)


def test_a_destination(setup: Setup) -> None:
    setup.browser.get(setup.address("/towpath/shop"))
    body = setup.browser.find_element(By.TAG_NAME, "body").text
    assert "shop – Towpath" in setup.browser.title
    assert EVIL in body, "shown as text"
    assert "it failed" in body and "cli:elsewhere:shop" in body
    lines = setup.browser.find_elements(By.CSS_SELECTOR, ".chart svg line[stroke-linecap]")
    assert len(lines) >= 8
    errors = [entry for entry in setup.browser.get_log("browser") if entry["level"] == "SEVERE"]  # type: ignore[no-untyped-call]
    assert [error for error in errors if "/towpath/" in error["message"]] == []
    setup.picture("destination")


@pytest.mark.parametrize("path", ["/towpath/", "/towpath/shop"])
def test_the_pages_on_a_telephone(setup: Setup, path: str) -> None:
    setup.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": TELEPHONE[0], "height": TELEPHONE[1], "deviceScaleFactor": 2, "mobile": True},
    )
    try:
        setup.browser.get(setup.address(path))
        width = setup.browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= TELEPHONE[0], "nothing has to be scrolled sideways"
        wide = setup.browser.execute_script(
            "return [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.tagName)"
        )
        assert wide == []
        setup.picture(f"telephone-{'one' if path.endswith('shop') else 'all'}")
    finally:
        setup.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_unmounted_store_is_an_error_of_its_row(setup: Setup) -> None:
    setup.browser.get(setup.address("/towpath/"))
    cards = setup.browser.find_elements(By.CSS_SELECTOR, "section.card")
    card_by_name = {card.find_element(By.TAG_NAME, "h2").text: card for card in cards}
    assert set(card_by_name) == {"shop", "unmounted", "broken"}
    assert "not readable" in card_by_name["unmounted"].text
    assert "not readable" in card_by_name["broken"].text
    assert "Position" in card_by_name["shop"].text
    setup.picture("all")
