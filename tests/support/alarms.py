"""Receivers of alarms for tests: a server of HTTP, one of SMTP, and a program."""

from __future__ import annotations

import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

from cdc.config import DestinationConfig, load
from tests.support.server import Certificates

SECRET = "a secret of the webhook, long enough"


@dataclass
class Received:
    """A request."""

    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass
class Receiver:
    """A server that takes alarms by HTTP."""

    url: str = ""
    status: int = 204
    delay_s: float = 0.0
    got: list[Received] = field(default_factory=list)
    taken: list[Received] = field(default_factory=list)
    """The requests that were answered with a status below 300."""

    def events(self) -> list[tuple[str, str]]:
        """Returns the event and the name of each alarm that was taken, without deliveries that came before."""
        by_id = {
            received.headers["webhook-id"]: (received.document["event"], received.document["alarm"])
            for received in self.taken
        }
        return list(by_id.values())


@contextmanager
def receiver(certificates: Certificates | None = None) -> Iterator[Receiver]:
    """Receives alarms while the context lasts, with a certificate by HTTPS."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received = Received({name.lower(): value for name, value in self.headers.items()}, body)
            receiver.got.append(received)
            time.sleep(receiver.delay_s)
            if receiver.status < 300:
                receiver.taken.append(received)
            self.send_response(receiver.status)
            if 300 <= receiver.status < 400:
                self.send_header("location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    scheme = "http"
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    receiver.url = f"{scheme}://127.0.0.1:{server.server_port}/hook/PATH-SECRET"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Mailbox:
    """The messages that an SMTP server has received."""

    port: int = 0
    mails: list[tuple[list[str], EmailMessage]] = field(default_factory=list)
    """Each with the addresses that get it."""
    was_encrypted: list[bool] = field(default_factory=list)

    async def handle_DATA(self, _server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        content = envelope.content
        assert isinstance(content, bytes)
        mail = message_from_bytes(content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append((list(envelope.rcpt_tos), mail))
        self.was_encrypted.append(session.ssl is not None)
        return "250 OK"


@contextmanager
def mail_server(certificates: Certificates | None = None, password: str | None = None) -> Iterator[Mailbox]:
    """Receives mail while the context lasts: with a certificate only after STARTTLS, with a password only after a login
    as ``towpath``."""
    mailbox = Mailbox()
    context = None
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.certificate, certificates.key)

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        assert isinstance(data, LoginPassword)
        ok = (data.login, data.password) == (b"towpath", (password or "").encode())
        return AuthResult(success=ok, handled=False)

    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=0,
        tls_context=context,
        require_starttls=context is not None,
        authenticator=authenticate if password is not None else None,
        auth_required=password is not None,
        auth_require_tls=context is not None,
    )
    controller.port = _free_port()
    controller.start()
    mailbox.port = controller.port
    try:
        yield mailbox
    finally:
        controller.stop()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def program(folder: Path, name: str = "pager", code: str = "") -> list[str]:
    """Returns a command that appends what it reads to ``NAME.out``, after ``code``."""
    script = folder / f"{name}.py"
    out = folder / f"{name}.out"
    script.write_text(f"import sys, os, time, subprocess\n{code}\nopen({str(out)!r}, 'a').write(sys.stdin.read())\n")
    return [sys.executable, str(script)]


def with_alarms(config: DestinationConfig, **alarms: Any) -> DestinationConfig:
    """Adds a section ``alarms`` to a configuration file, and takes the disk of this machine for empty."""
    document = yaml.safe_load(config.file.read_text())
    store = {**document["store"], "disk": {"warn_ratio": 1, "clean_ratio": 1, "stop_ratio": 1}}
    config.file.write_text(yaml.safe_dump({**document, "store": store, "alarms": alarms}))
    return load(config.file)


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 20) -> None:
    """Waits until the condition holds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)
