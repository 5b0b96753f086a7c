"""Sends alarms: to a webhook, by mail, or to a command.

Each call is one try, and raises :class:`HandlerError` with a text that holds no secret. The limits are those of single
steps; :mod:`cdc.watch.alarms.watch` limits the whole.
"""

from __future__ import annotations

import hmac
import json
import os
import signal
import smtplib
import ssl
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from base64 import b64encode
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

import cdc
from cdc.base.errors import CdcError
from cdc.config.secrets import mail_credentials, webhook_secret
from cdc.watch.alarms.notice import Notice

if TYPE_CHECKING:
    from email.message import Message

    from cdc.config import DestinationConfig


class HandlerError(Exception):
    """A handler has not taken an alarm."""


class Handler(ABC):
    """Somebody who is told of alarms."""

    name: str

    @abstractmethod
    def send(self, notice: Notice) -> None:
        """Sends one message. Raises HandlerError; ConfigError for a secret that is missing."""


def handlers(config: DestinationConfig) -> list[Handler]:
    """Returns the handlers that the configuration names."""
    kinds: dict[str, type[Webhook | Mail | Command]] = {"webhook": Webhook, "mail": Mail, "command": Command}
    return [kinds[name](config) for name in config.alarms.handlers]


class Webhook(Handler):
    """Posts the document to a server, signed as standardwebhooks.com says. Redirects are not followed, because they
    would take the document elsewhere."""

    name = "webhook"

    def __init__(self, config: DestinationConfig) -> None:
        self._settings, self._timeout_s = config.alarms.webhook, config.alarms.timeout_s

    def send(self, notice: Notice) -> None:
        url = self._settings.url
        assert url is not None
        body = json.dumps(notice.document(), ensure_ascii=False).encode()
        stamp = str(int(notice.time.timestamp()))
        headers = {
            "content-type": "application/json",
            "user-agent": f"towpath/{cdc.__version__}",
            "webhook-id": notice.delivery,
            "webhook-timestamp": stamp,
        }
        secret = webhook_secret(self._settings)
        if secret is not None:
            headers["webhook-signature"] = signature(secret, notice.delivery, stamp, body)
        request = urllib.request.Request(url, body, headers, method="POST")
        host = urlsplit(url).netloc  # the path may hold a secret
        steps: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if url.startswith("https:"):
            steps.append(urllib.request.HTTPSHandler(context=_tls(self._settings.ca_file)))
        try:
            with urllib.request.build_opener(*steps).open(request, timeout=self._timeout_s) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            error.close()
            status = error.code
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise HandlerError(f"{host} cannot be reached: {_plain(reason, url)}") from None
        if not 200 <= status < 300:
            raise HandlerError(f"{host} answers with status {status}")


def signature(secret: bytes, delivery: str, stamp: str, body: bytes) -> str:
    """Returns the header ``webhook-signature``: HMAC-SHA256 over ``id.timestamp.body``."""
    signed = b".".join((delivery.encode(), stamp.encode(), body))
    return "v1," + b64encode(hmac.digest(secret, signed, sha256)).decode()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Follows nothing."""


class Mail(Handler):
    """Mails the alarm by SMTP."""

    name = "mail"

    def __init__(self, config: DestinationConfig) -> None:
        self._settings, self._timeout_s = config.alarms.mail, config.alarms.timeout_s

    def send(self, notice: Notice) -> None:
        settings = self._settings
        assert settings.host is not None and settings.sender is not None
        message = EmailMessage()
        message["Subject"], message["From"] = notice.subject(), settings.sender
        message["To"], message["Date"] = ", ".join(settings.to), formatdate(notice.time.timestamp())
        message["Message-ID"] = make_msgid(notice.delivery, "towpath.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message["References"] = f"<{notice.id}@towpath.invalid>"  # one conversation for each alarm
        message.set_content(notice.text())
        credentials = mail_credentials(settings)
        where = f"{settings.host}:{settings.port_or_default}"
        try:
            with self._connect(settings.host) as smtp:
                if credentials is not None:
                    smtp.login(credentials.user, credentials.password)
                refused = smtp.send_message(message)
        except smtplib.SMTPAuthenticationError as error:  # its text may repeat what was sent
            raise HandlerError(f"{where} refuses user {settings.user} (code {error.smtp_code})") from None
        except smtplib.SMTPRecipientsRefused as error:
            raise HandlerError(f"{where} refuses the addresses {', '.join(error.recipients)}") from None
        except smtplib.SMTPResponseException as error:
            raise HandlerError(f"{where} answers with code {error.smtp_code}") from None
        except (OSError, smtplib.SMTPException) as error:
            raise HandlerError(f"{where} cannot be used: {_plain(error)}") from None
        if refused:
            raise HandlerError(f"{where} refuses the addresses {', '.join(refused)}")

    def _connect(self, host: str) -> smtplib.SMTP:
        port, mode = self._settings.port_or_default, self._settings.tls
        if mode == "tls":
            context = _tls(self._settings.ca_file)
            return smtplib.SMTP_SSL(host, port, timeout=self._timeout_s, context=context)
        smtp = smtplib.SMTP(host, port, timeout=self._timeout_s)
        if mode == "starttls":
            try:
                smtp.starttls(context=_tls(self._settings.ca_file))
            except BaseException:
                smtp.close()
                raise
        return smtp


class Command(Handler):
    """Runs a program with the document on standard input. Its output goes to standard error."""

    name = "command"

    def __init__(self, config: DestinationConfig) -> None:
        self._command, self._timeout_s = config.alarms.command, config.alarms.timeout_s

    def send(self, notice: Notice) -> None:
        program = self._command[0]
        body = json.dumps(notice.document(), ensure_ascii=False).encode() + b"\n"
        try:  # a session of its own: what the program has started is ended with it
            with subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            ) as running:
                try:
                    running.communicate(body, timeout=self._timeout_s)
                except subprocess.TimeoutExpired:
                    with suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)
                    raise HandlerError(
                        f"{program} has not ended within {self._timeout_s:g} s, and was killed"
                    ) from None
        except OSError as error:
            raise HandlerError(f"{program} cannot be run: {error.strerror}") from None
        if running.returncode != 0:
            raise HandlerError(f"{program} ended with code {running.returncode}")


def explained(error: BaseException) -> str:
    """Returns the reason of a failure for a log, without secrets."""
    return str(error) if isinstance(error, HandlerError | CdcError) else type(error).__name__


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    """Returns settings of TLS that check the server's certificate. Raises HandlerError."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise HandlerError(f"{ca_file} holds no certificates that can be used: {_plain(error)}") from None


def _plain(error: Any, secret: str = "\0") -> str:
    """Returns the text of an error without the address in it."""
    return " ".join(str(error).replace(secret, "URL").split())[:300] or type(error).__name__
