"""``server``: how ``cdc server`` serves this destination's store to other machines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from cdc.base.addresses import is_loopback
from cdc.config.ha import HaConfig
from cdc.config.secret_source import Secret
from cdc.config.values import Doc, DurationS, FilePath, FilledText, Section, Whole

_SUBSCRIBER = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class TokenConfig(Section):
    """The place of a subscriber's token: an environment variable or a file."""

    env: FilledText | None = None
    """Environment variable that holds the token."""
    file: FilePath | None = None
    """File whose first line is the token."""

    token: ClassVar = Secret("", "the token", prefix="", required=True)


class CanalConfig(Section):
    """Canal's protocol, by which clients of Canal get this destination's changes. Destinations that one process serves
    agree on everything in it."""

    enabled: bool = False
    """Whether `cdc server` serves this destination to Canal's clients."""
    port: Whole = Field(default=11111, ge=1, le=65535)
    """Port of the protocol. `cdc server --port` takes precedence."""
    host: FilledText = "127.0.0.1"
    """Address of this machine at which it listens. Another one than a loopback address needs a password."""
    user: FilledText = "canal"
    """Name with which clients log in if there is a password; without one any name is taken."""
    password_env: FilledText | None = None
    """Environment variable that holds the clients' password. Without it and `password_file`, clients need none."""
    password_file: FilePath | None = None
    """File whose first line is the clients' password. A relative path is taken from the folder of this file."""
    tls: bool = False
    """Whether clients connect by TLS, with `server.certificate`. Canal's own clients cannot."""
    time_zone: FilledText = "UTC"
    """Time zone in which a TIMESTAMP is written, such as `Asia/Shanghai`. Canal's server takes that of its machine."""
    max_clients: Whole = Field(default=100, ge=1, le=10_000)
    """Clients that are logged in at once, and client ids with a subscription. Further ones are refused."""
    max_request_bytes: Whole = Field(default=65_536, ge=1024, le=16_777_216)
    """Largest packet that a client may send. A client that sends a larger one is disconnected."""
    max_answer_bytes: Whole = Field(default=8_388_608, ge=65_536, le=1_073_741_824)
    """Size at which a batch ends, whatever its client asks for. A single row event may make it larger. One client's
    answers take about this much memory at a time."""
    idle_s: DurationS = 3600.0
    """After this time without a packet a client is disconnected. A client that logs in may ask for less."""

    password: ClassVar = Secret("server.canal", "the password of Canal's clients")

    def _contradictions(self) -> Iterator[str]:
        if not self.password.is_given and not is_loopback(self.host):
            yield (
                f"host {self.host} needs a password, because the protocol hands out all rows; add password_env or "
                "password_file, or use host: 127.0.0.1"
            )


class RolesConfig(Section):
    """Tokens of people and programs that look after `cdc server` (`cdc instance`, `/v1/instances`). Without them only
    this machine can see the instances, and nobody can start or stop one. Destinations that one process serves agree on
    them, or leave them out."""

    viewer: Annotated[TokenConfig | None, Doc(example={"env": "TOWPATH_VIEWER_TOKEN"})] = None
    """The token that may see instances and their logs, `{env: VARIABLE}` or `{file: PATH}`."""
    operator: Annotated[TokenConfig | None, Doc(example={"env": "TOWPATH_OPERATOR_TOKEN"})] = None
    """The token that may start, stop, restart and reload them as well."""


class ServerConfig(Section):
    """The server that hands out batches and bytes of this store to other machines (`cdc server`). It needs the package
    `towpath[server]`. Destinations that one process serves agree on everything but their tokens."""

    http: Whole = Field(default=8040, ge=1, le=65535)
    """Port of the server. `cdc server --http` takes precedence."""
    host: FilledText = "127.0.0.1"
    """Address of this machine at which it listens. Another one than a loopback address needs `certificate`."""
    certificate: Annotated[FilePath | None, Doc(example="server.pem")] = None
    """File with the server's certificate (PEM), and those between it and the CA. A relative path is taken from the
    folder of this file."""
    key: Annotated[FilePath | None, Doc(example="server.key")] = None
    """File with the certificate's private key (PEM). A relative path is taken from the folder of this file."""
    tokens: Annotated[dict[str, TokenConfig], Doc(example={"apply": {"env": "SHOP_APPLY_TOKEN"}})] = Field(default={})
    """The token of each subscriber, `{env: VARIABLE}` or `{file: PATH}`, of at least 16 characters; `apply` fills the
    tables. A token opens its own subscription only."""
    canal: CanalConfig = CanalConfig()
    capture: Annotated[
        Literal["none", "always", "subscribed"],
        Doc(
            choices={
                "none": "`cdc capture` runs beside it",
                "always": "it runs, and is started again, as long as the server serves the destination",
                "subscribed": "it runs while somebody has a subscription, and for a minute afterwards",
            }
        ),
    ] = "none"
    """Whether `cdc server` runs the capture of this destination, as a process of its own."""
    push: Annotated[
        Literal["none", "always"],
        Doc(
            choices={
                "none": "`cdc push` runs beside it, or not at all",
                "always": "it runs, and is started again, as long as the server serves the destination",
            }
        ),
    ] = "none"
    """Whether `cdc server` runs the push of this destination to Kafka (`mq`), as a process of its own."""
    scan_s: DurationS = 5.0
    """How often `cdc server` looks for new, changed and removed configurations. Destinations that one process serves
    agree on it, or leave it out."""
    roles: RolesConfig = RolesConfig()
    ha: HaConfig = HaConfig()

    @field_validator("tokens")
    @classmethod
    def _subscribers(cls, tokens: dict[str, TokenConfig]) -> dict[str, TokenConfig]:
        for name in tokens:
            if not _SUBSCRIBER.fullmatch(name):
                raise ValueError(f"{name!r} cannot be the name of a subscriber")
        return tokens

    def _contradictions(self) -> Iterator[str]:
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key belong together; give both, or neither"
        if self.certificate is None and self.canal.tls:
            yield "canal.tls needs certificate and key"
        if self.certificate is None and not is_loopback(self.host):
            yield (
                f"host {self.host} needs certificate and key: tokens must not cross the network in clear; add both, or "
                "use host: 127.0.0.1"
            )
        if self.ha.address is not None and not is_loopback(self.ha.address):
            for key, host, used in (
                ("host", self.host, bool(self.tokens)),
                ("canal.host", self.canal.host, self.canal.enabled),
            ):
                if used and is_loopback(host):
                    yield (
                        f"ha.address {self.ha.address} and {key} {host} contradict each other: nobody else reaches it "
                        f"there; set {key} to the address of this machine"
                    )
