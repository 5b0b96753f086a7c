"""``alarms``: who is told when something is wrong with a destination, and when something counts as wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field, field_validator

from cdc.base.addresses import is_loopback
from cdc.config.secret_source import Secret
from cdc.config.values import Doc, DurationS, FilePath, FilledText, FolderPath, Section, WaitS, Whole, require_http

AlarmKind = Literal[
    "capture_failed",
    "capture_down",
    "capture_disconnected",
    "capture_lag",
    "source_purge",
    "disk_fills_up",
    "disk_full",
    "archive_fails",
    "subscriber_lag",
    "subscriber_holds_back",
    "subscriber_cut_off",
    "subscriber_before_store",
    "batch_abandoned",
    "run_failed",
    "table_parked",
    "status_unreadable",
]
"""The conditions that raise an alarm. :mod:`cdc.watch.alarms.conditions` says when each one holds."""

_PORTS = {"starttls": 587, "tls": 465, "none": 25}


class WebhookConfig(Section):
    """A server that gets each alarm as a JSON document, by POST."""

    url: Annotated[str | None, Doc(example="https://hooks.example/towpath")] = None
    """Address of the server; null means that there is none. Write a secret part of it as `${NAME}`."""
    secret_env: Annotated[str | None, Doc(example="ALARM_SECRET")] = None
    """Environment variable with the secret that signs each document, as standardwebhooks.com says. Without it and
    `secret_file`, documents are not signed."""
    secret_file: Annotated[FilePath | None, Doc(instead_of="secret_env")] = None
    """File whose first line is that secret. A relative path is taken from the folder of this file."""
    ca_file: FilePath | None = None
    """File with the certificates (PEM) of the CAs that the server's certificate is checked with; null means those of
    the system. A relative path is taken from the folder of this file."""

    secret: ClassVar = Secret("alarms.webhook", "the secret of the webhook")

    @field_validator("url")
    @classmethod
    def _url(cls, url: str | None) -> str | None:
        if url is not None:
            require_http(
                url,
                otherwise="is not a URL; write https://hooks.example/towpath",
                with_secrets="must not hold a user or a password; sign with secret_env instead",
                path=True,
            )
        return url

    def _contradictions(self) -> Iterator[str]:
        keys = sorted(self.model_fields_set - {"url"})
        if self.url is None and keys:
            yield f"{keys[0]} has no effect without url; remove it, or add url: URL"
        if self.ca_file is not None and not (self.url or "").startswith("https:"):
            yield "ca_file has no effect with an url of http; remove it, or use https"


class MailConfig(Section):
    """A server that mails each alarm, by SMTP."""

    host: Annotated[FilledText | None, Doc(example="smtp.example")] = None
    """Name of the SMTP server; null means that nothing is mailed."""
    port: Whole | None = Field(default=None, ge=1, le=65535)
    """Its port; null means 587 with `tls: starttls`, 465 with `tls`, and 25 with `none`."""
    tls: Annotated[
        Literal["starttls", "tls", "none"],
        Doc(
            choices={
                "starttls": "the connection goes over to TLS; a server that cannot do so gets no mail",
                "tls": "the connection uses TLS from its first byte",
                "none": "nothing is encrypted; with a user only if the server is on this machine",
            }
        ),
    ] = "starttls"
    """How the connection is encrypted."""
    ca_file: FilePath | None = None
    """File with the certificates (PEM) of the CAs that the server's certificate is checked with; null means those of
    the system. A relative path is taken from the folder of this file."""
    sender: Annotated[FilledText | None, Doc(example="towpath@example.com")] = None
    """The address that the mail comes from."""
    to: Annotated[tuple[FilledText, ...], Doc(example=["oncall@example.com"])] = ()
    """The addresses that get the mail."""
    user: FilledText | None = None
    """User for a server that asks for one."""
    password_env: str | None = None
    """Environment variable that holds the password of `user`."""
    password_file: Annotated[FilePath | None, Doc(instead_of="password_env")] = None
    """File whose first line is the password of `user`. A relative path is taken from the folder of this file."""

    password: ClassVar = Secret("alarms.mail", "the password of {0.user!r}")

    @property
    def port_or_default(self) -> int:
        """The port."""
        return _PORTS[self.tls] if self.port is None else self.port

    @field_validator("sender", "to")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for address in (value,) if isinstance(value, str) else value or ():
            if not address.isprintable() or "@" not in address or " " in address:
                raise ValueError(f"{address!r} is not an address of mail; write name@example.com")
        return value

    def _contradictions(self) -> Iterator[str]:
        keys = sorted(self.model_fields_set - {"host"})
        if self.host is None:
            if keys:
                yield f"{keys[0]} has no effect without host; remove it, or add host: NAME"
            return
        if self.sender is None or not self.to:
            yield "host needs sender and to; add sender: ADDRESS and to: [ADDRESS]"
        if self.password.is_given != (self.user is not None):
            yield "user and its password belong together; give both, or neither"
        if self.tls == "none" and self.password.is_given and not is_loopback(self.host):
            yield (
                f"tls: none and user contradict each other: the password would cross the network to {self.host} in "
                "clear; use starttls or tls"
            )
        if self.tls == "none" and self.ca_file is not None:
            yield "ca_file has no effect with tls: none; remove it, or use starttls or tls"


class AlarmsConfig(Section):
    """Alarms: a webhook, a mail or a command of yours is told when something is wrong with the destination, once when
    it begins, again while it lasts, and once when it ends. `cdc server` and `cdc capture` send them."""

    webhook: WebhookConfig = WebhookConfig()
    mail: MailConfig = MailConfig()
    command: Annotated[tuple[FilledText, ...], Doc(example=["/usr/local/bin/page-somebody"])] = ()
    """Program and arguments that are run for each alarm, without a shell, with the JSON document on standard input.
    Exit code 0 means that it has taken the alarm."""
    for_s: WaitS = 60.0
    """How long something is wrong before an alarm is raised. A capture that ends with an error raises one at once."""
    repeat_s: DurationS | None = 14400.0
    """Time after which an alarm that lasts is sent again; null means never."""
    lag_s: DurationS = 1800.0
    """Lag of the store behind its source, and age of the oldest transaction that a subscriber has not acked, above
    which an alarm is raised."""
    ignore: tuple[FilledText, ...] = ()
    """Alarms that are not raised, by their names, such as `table_parked`."""
    timeout_s: DurationS = 10.0
    """How long one try to send an alarm may take. Tries that fail are repeated, with longer and longer pauses."""
    path: FolderPath | None = None
    """File with the alarms that were raised; null means `PATH.alarms.json` beside the store in `PATH`."""

    @field_validator("ignore")
    @classmethod
    def _kinds(cls, ignore: tuple[str, ...]) -> tuple[str, ...]:
        for name in ignore:
            if name not in get_args(AlarmKind):
                raise ValueError(f"{name!r} is no alarm; the alarms are {', '.join(get_args(AlarmKind))}")
        return ignore

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names of those that are configured."""
        values = {"webhook": self.webhook.url, "mail": self.mail.host, "command": self.command}
        return tuple(name for name, value in values.items() if value)

    def _contradictions(self) -> Iterator[str]:
        if self.model_fields_set and not self.handlers:
            yield "nobody is told; add webhook: {url: URL}, mail: {host: NAME, …} or command: [PROGRAM]"
