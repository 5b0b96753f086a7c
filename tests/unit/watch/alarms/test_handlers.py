"""Handlers of alarms against real servers: what they send, whom they trust, and what a failure says."""

from __future__ import annotations

import hmac
import json
import os
import socket
import time
from base64 import b64decode, b64encode
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig
from cdc.watch.alarms.handlers import Command, HandlerError, Mail, Webhook
from cdc.watch.alarms.notice import Notice
from tests.support.alarms import SECRET, mail_server, program, receiver, wait_until, with_alarms
from tests.support.server import Certificates, make_certificates
from tests.support.unit_batches import make_config

EVIL = "<script>alert(1)</script>\nBcc: evil@example.com\r\n\x1b[31m"
NOTICE = Notice(
    event="raised",
    id="0123456789abcdef",
    number=1,
    destination="shop",
    alarm="table_parked",
    severity="warning",
    summary=f"Apply leaves out shop.{EVIL} of shop.",
    detail="the source mysql://cdc:hunter2@db:3306 is gone",
    subscriber="apply",
    table=f"shop.{EVIL}",
    since=datetime(2026, 11, 24, 12, 0, tzinfo=UTC),
    time=datetime(2026, 11, 24, 12, 1, tzinfo=UTC),
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DestinationConfig:
    monkeypatch.setenv("ALARM_SECRET", SECRET)
    monkeypatch.setenv("MAIL_PASSWORD", "sesame")
    return make_config(tmp_path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


# --- webhook


@pytest.mark.parametrize("secret", [SECRET, "whsec_" + b64encode(SECRET.encode()).decode()])
def test_a_webhook_gets_a_signed_document(
    config: DestinationConfig, certificates: Certificates, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALARM_SECRET", secret)
    with receiver(certificates) as server:
        settings = {"url": server.url, "secret_env": "ALARM_SECRET", "ca_file": str(certificates.ca)}
        Webhook(with_alarms(config, webhook=settings)).send(NOTICE)
        (request,) = server.taken
    assert set(request.document) == {
        "version", "event", "id", "delivery", "number", "destination", "alarm", "severity", "summary", "detail",
        "subscriber", "table", "since", "resolved", "time", "host",
    }  # fmt: skip
    assert request.document["table"] == f"shop.{EVIL}"
    assert request.document["since"] == "2026-11-24T12:00:00Z"
    assert "hunter2" not in request.body.decode()
    assert request.headers["webhook-id"] == request.document["delivery"] == "0123456789abcdef-1-raised"
    version, _, signature = request.headers["webhook-signature"].partition(",")
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode() + request.body
    assert (version, b64decode(signature)) == ("v1", hmac.digest(SECRET.encode(), signed, sha256))


def test_a_certificate_that_nobody_trusts_gets_nothing(config: DestinationConfig, certificates: Certificates) -> None:
    with receiver(certificates) as server:
        with pytest.raises(HandlerError, match="certificate verify failed") as caught:
            Webhook(with_alarms(config, webhook={"url": server.url})).send(NOTICE)
        assert server.got == []
    assert "PATH-SECRET" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 307, 400, 500])
def test_another_status_than_success_is_a_failure(config: DestinationConfig, status: int) -> None:
    with receiver() as server:
        server.status = status
        with pytest.raises(HandlerError, match=rf"127\.0\.0\.1:\d+ answers with status {status}$"):
            Webhook(with_alarms(config, webhook={"url": server.url})).send(NOTICE)
        assert len(server.got) == 1, "a redirect is not followed"


def test_a_webhook_that_hangs_or_is_gone(config: DestinationConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/PATH-SECRET"
        webhook = Webhook(with_alarms(config, webhook={"url": url}, timeout_s=0.2))
        with pytest.raises(HandlerError, match="timed out"):
            webhook.send(NOTICE)
    with pytest.raises(HandlerError, match="refused") as caught:
        webhook.send(NOTICE)
    assert "PATH-SECRET" not in str(caught.value)


def test_a_secret_that_is_missing_or_short_is_named(config: DestinationConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    webhook = Webhook(with_alarms(config, webhook={"url": "http://127.0.0.1:1/", "secret_env": "ALARM_SECRET"}))
    for value in ("whsec_####", "too short"):
        monkeypatch.setenv("ALARM_SECRET", value)
        with pytest.raises(ConfigError, match="at least 16 bytes") as caught:
            webhook.send(NOTICE)
        assert value not in str(caught.value)
    monkeypatch.delenv("ALARM_SECRET")
    with pytest.raises(ConfigError, match="ALARM_SECRET is not set"):
        webhook.send(NOTICE)


# --- mail


def mail(config: DestinationConfig, port: int, **more: Any) -> Mail:
    settings = {
        "host": "127.0.0.1",
        "port": port,
        "sender": "towpath@example.com",
        "to": ["a@x.example", "b@x.example"],
    }
    return Mail(with_alarms(config, mail={**settings, **more}, timeout_s=3))


def test_a_mail_goes_by_starttls_after_a_login(config: DestinationConfig, certificates: Certificates) -> None:
    with mail_server(certificates, password="sesame") as box:
        mail(config, box.port, user="towpath", password_env="MAIL_PASSWORD", ca_file=str(certificates.ca)).send(NOTICE)
    ((addresses, message),) = box.mails
    assert box.was_encrypted == [True]
    assert addresses == ["a@x.example", "b@x.example"]
    assert message["Subject"].startswith("[Towpath] warning: Apply leaves out shop.<script>alert(1)</script> Bcc: evil")
    assert message["Bcc"] is None, "a name of a table makes no header"
    assert "\x1b" not in message["Subject"]
    text = message.get_content()
    assert "delivery: 0123456789abcdef-1-raised" in text and "hunter2" not in text
    assert message["Auto-Submitted"] == "auto-generated"


def test_a_mail_server_that_is_not_trusted_or_refuses(config: DestinationConfig, certificates: Certificates) -> None:
    with mail_server(certificates, password="other") as box:
        with pytest.raises(HandlerError, match="certificate verify failed"):
            mail(config, box.port).send(NOTICE)
        with pytest.raises(HandlerError, match=r"refuses user towpath \(code 535\)") as caught:
            mail(config, box.port, user="towpath", password_env="MAIL_PASSWORD", ca_file=str(certificates.ca)).send(
                NOTICE
            )
    assert "sesame" not in str(caught.value)
    assert box.mails == []


def test_a_server_without_starttls_gets_no_mail(config: DestinationConfig) -> None:
    with mail_server() as box:
        with pytest.raises(HandlerError, match="STARTTLS"):
            mail(config, box.port).send(NOTICE)
        assert box.mails == []
        mail(config, box.port, tls="none").send(replace(NOTICE, event="resolved", resolved=NOTICE.time))
    ((_, message),) = box.mails
    assert message["Subject"].startswith("[Towpath] resolved: ")


# --- command


def test_a_command_gets_the_document_without_a_shell(config: DestinationConfig, tmp_path: Path) -> None:
    Command(with_alarms(config, command=[*program(tmp_path), "$(touch x); rm"])).send(NOTICE)
    assert json.loads((tmp_path / "pager.out").read_text()) == NOTICE.document()


def test_a_command_that_fails_or_is_missing(config: DestinationConfig, tmp_path: Path) -> None:
    with pytest.raises(HandlerError, match="ended with code 3"):
        Command(with_alarms(config, command=program(tmp_path, code="sys.exit(3)"))).send(NOTICE)
    with pytest.raises(HandlerError, match="No such file"):
        Command(with_alarms(config, command=[str(tmp_path / "none")])).send(NOTICE)


def test_a_command_that_hangs_is_killed_with_what_it_has_started(config: DestinationConfig, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = (
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(60)"
    )
    began = time.monotonic()
    with pytest.raises(HandlerError, match="has not ended within 1 s, and was killed"):
        Command(with_alarms(config, command=program(tmp_path, code=code), timeout_s=1)).send(NOTICE)
    assert time.monotonic() - began < 30
    for pid in map(int, pids.read_text().split()):
        wait_until(lambda pid=pid: not _runs(pid), f"the end of process {pid}")  # type: ignore[misc]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()  # nobody may have waited for an orphan yet
    except (ProcessLookupError, FileNotFoundError):
        return False
