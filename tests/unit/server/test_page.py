"""The page of a server over HTTP: who sees it, who may act, what is escaped, and what its answers forbid."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
import yaml
from structlog.testing import capture_logs

from cdc.batches.service import BatchService
from cdc.config import DestinationConfig, load
from cdc.meta import ParkedTable
from cdc.server import EmbeddedServer
from cdc.server.roles import Role
from cdc.server.sessions import LASTS_S, LoginLimit, LoginSessions
from tests.support.server import TOKEN, with_tokens
from tests.unit.watch.alarms.test_watch import prepared

VIEWER, OPERATOR = "viewer-0123456789abcdef", "operator-0123456789abcdef"
EVIL = "<script>alert(1)</script>\"'&"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> DestinationConfig:
    folder = tmp_path_factory.mktemp("page")
    made = with_tokens(prepared(folder, command=["true"]))
    with BatchService(made).meta.change() as state:
        state.subscription("apply").parked[f"shop.{EVIL}"] = ParkedTable(
            due="retry", reason=f"it failed: {EVIL}", since=datetime.now(UTC)
        )
    assert BatchService(made).get(f"cli:{EVIL}", wait_s=0) is not None
    document = yaml.safe_load(made.file.read_text())
    del document["alarms"]
    document["server"] |= {"roles": {"viewer": {"file": "viewer"}, "operator": {"file": "operator"}}, "scan_s": 0.1}
    for name, token in (("viewer", VIEWER), ("operator", OPERATOR)):
        (made.file.parent / name).write_text(token)
    made.file.write_text(yaml.safe_dump(document))
    broken = {"source": {"url": "mysql://u@h:1", EVIL: 1}}
    (made.file.parent / "broken.yaml").write_text(yaml.safe_dump(broken))
    return load(made.file)


@pytest.fixture(scope="module")
def server(config: DestinationConfig) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(config.file.parent, http=0) as embedded_server:
        yield embedded_server


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False) as http_client:
        yield http_client


def log_in(client: httpx.Client, token: str) -> None:
    answer = client.post("/login", data={"token": token})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def form_of(client: httpx.Client, path: str = "/") -> str:
    match = re.search(r'name="form" value="([^"]+)"', client.get(path).text)
    assert match is not None
    return match[1]


def test_who_is_not_logged_in_learns_nothing(client: httpx.Client) -> None:
    for path in ("/", "/instances/shop", "/instances/none"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    for path in ("/instances/shop/stop", "/reload"):
        assert client.post(path, data={"form": "x"}).headers["location"] == "/login"
    page = client.get("/login")
    assert "shop" not in page.text and '<label for="token">' in page.text


def test_a_cookie_is_for_this_server_alone(client: httpx.Client) -> None:
    answer = client.post("/login", data={"token": VIEWER})
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(rf"towpath_session=[\w.-]+; HttpOnly; Max-Age={LASTS_S}; Path=/; SameSite=strict", cookie), (
        cookie
    )
    assert VIEWER not in cookie
    value = client.cookies["towpath_session"]
    for changed in (value[:-1], f"2{value[1:]}", "", "x", "é", f"{value}.x", value.replace(".", ".1", 1)):
        with httpx.Client(base_url=client.base_url, trust_env=False) as other:
            answer = other.get("/", headers={b"cookie": b"towpath_session=" + changed.encode("latin-1")})
        assert answer.status_code == 303, changed
    assert client.get("/").status_code == 200


def test_a_viewer_sees_and_does_nothing(client: httpx.Client) -> None:
    log_in(client, VIEWER)
    page = client.get("/")
    assert page.status_code == 200
    assert 'href="/instances/shop"' in page.text and 'href="/instances/broken"' in page.text
    assert "/stop" not in page.text and "/reload" not in page.text
    form = form_of(client)
    for path in ("/instances/shop/stop", "/instances/shop/start", "/reload"):
        assert client.post(path, data={"form": form}).status_code == 403
    assert client.post("/logout", data={"form": "x"}).status_code == 403
    assert client.post("/logout", data={"form": form}).headers["location"] == "/login"
    assert client.get("/").status_code == 303


def test_an_operator_acts(client: httpx.Client, server: EmbeddedServer) -> None:
    log_in(client, OPERATOR)
    form = form_of(client)

    def state() -> str:
        response = httpx.get(
            f"{server.url}/v1/instances/shop", headers={"authorization": f"Bearer {VIEWER}"}, trust_env=False
        )
        return str(response.json()["instance"]["state"])

    for wrong in ({}, {"form": "x"}, {"form": form[:-1]}, {"form": "é"}):
        assert client.post("/instances/shop/stop", data=wrong).status_code == 403
    answer = client.post("/instances/shop/stop", data={"form": form}, headers={"origin": "https://evil.example"})
    assert answer.status_code == 403
    assert client.post("/instances/shop/stop", data={"form": form}, headers={"origin": "null"}).status_code == 403
    assert state() == "running"
    answer = client.post("/instances/shop/stop", data={"form": form}, headers={"origin": server.url})
    assert (answer.status_code, answer.headers["location"]) == (303, "/instances/shop")
    assert state() == "stopped"
    page = client.get("/instances/shop").text
    assert "/instances/shop/start" in page and "/instances/shop/stop" not in page
    client.post("/instances/shop/start", data={"form": form})
    assert state() == "running"
    assert client.post("/instances/shop/restart", data={"form": form}).status_code == 303
    assert client.post("/reload", data={"form": form}).headers["location"] == "/"
    assert client.post("/instances/shop/drop", data={"form": form}).status_code == 404
    assert client.post("/instances/none/stop", data={"form": form}).status_code == 404
    assert client.get("/instances/shop/stop").status_code == 405


def test_a_form_of_another_login_does_nothing(client: httpx.Client, server: EmbeddedServer) -> None:
    log_in(client, OPERATOR)
    form = form_of(client)
    with httpx.Client(base_url=server.url, trust_env=False) as other:
        log_in(other, OPERATOR)
        assert other.post("/instances/shop/stop", data={"form": form}).status_code == 403


def test_everything_is_escaped(client: httpx.Client) -> None:
    log_in(client, OPERATOR)
    pages = [client.get(path).text for path in ("/", "/instances/shop", "/instances/broken", f"/instances/{EVIL}")]
    for page in pages:
        assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in pages[1]
    assert "it failed" in pages[1] and "cli:" in pages[1]
    assert "source.&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;: unknown key" in pages[2]


def test_the_headers_forbid_what_a_page_does_not_need(client: httpx.Client) -> None:
    log_in(client, VIEWER)
    first, second = client.get("/"), client.get("/")
    for answer in (first, client.get("/login"), client.get("/instances/none")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'nonce-")
        assert "unsafe" not in policy and "script-src" not in policy and "frame-ancestors 'none'" in policy
        nonce = re.search(r"'nonce-([\w-]+)'", policy)
        assert nonce is not None and f'<style nonce="{nonce[1]}">' in answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not re.search(r"(src|href)=.?https?:", answer.text), "nothing is fetched from elsewhere"
        assert " style=" not in answer.text and " on" not in re.sub(r">[^<]*<", "><", answer.text).replace(" one", "")
    assert first.headers["content-security-policy"] != second.headers["content-security-policy"]


def test_wrong_logins_are_counted(client: httpx.Client, server: EmbeddedServer) -> None:
    """Comes last: this address has to wait afterwards."""
    with capture_logs() as logs:
        answers = [client.post("/login", data={"token": f"wrong-{number}-{TOKEN}"}) for number in range(6)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429]
    assert int(answers[-1].headers["retry-after"]) in range(1, 62)
    assert client.post("/login", data={"token": OPERATOR}).status_code == 429, "not even with the right one"
    assert TOKEN not in str(logs) and "wrong token at the page" in str(logs)
    assert client.post("/login", content=b"token=" + b"x" * 5000).status_code in (413, 429)


# --- parts


def test_a_login_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    sessions = LoginSessions(lambda: now[0])
    cookie = sessions.cookie(Role.VIEWER)
    session = sessions.read(cookie)
    assert session is not None and session.role is Role.VIEWER
    assert LoginSessions(lambda: now[0]).read(cookie) is None, "another process has another key"
    now[0] += LASTS_S
    assert sessions.read(cookie) is None


def test_the_limit_is_for_one_address_and_ends() -> None:
    now = [0.0]
    limit = LoginLimit(lambda: now[0])
    for _ in range(5):
        assert limit.wait_s("10.0.0.1") == 0
        limit.wrong("10.0.0.1")
        limit.wrong("2001:db8::1")
    assert limit.wait_s("10.0.0.1") == 60
    assert limit.wait_s("10.0.0.2") == 0
    assert limit.wait_s("2001:db8::2") == 60, "a network of IPv6 is one address"
    now[0] = 60
    assert limit.wait_s("10.0.0.1") == 0
    for number in range(2000):
        limit.wrong(f"10.1.{number // 256}.{number % 256}")
    assert len(limit._wrong) == 1000
