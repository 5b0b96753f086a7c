"""The nodes of servers and clients below ``{root}``, in Canal's tree: ``docs/formats/cluster.md``.

The names and contents are those of Canal's ZookeeperPathUtils, ServerRunningData and ClientRunningData, so that its
cluster clients find Towpath's servers. The node ``towpath/leader`` is Towpath's own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from cdc.base.addresses import Address
from cdc.base.documents import require_version
from cdc.base.errors import ConfigError, DamagedError, UsageError

DEFAULT_ROOT = "/otter/canal"
LEADER_VERSION = 1
_ADDRESS = re.compile(r"([^:\s]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Tree:
    """The paths of nodes below a root."""

    root: str = DEFAULT_ROOT

    def server(self, address: str) -> str:
        """The ephemeral node of a server that is up, whatever it serves."""
        return f"{self.root}/cluster/{address}"

    def destination(self, destination: str) -> str:
        if not destination or "/" in destination or destination in (".", ".."):
            raise UsageError(f"{destination!r} cannot be the name of a destination: it must be the name of a node")
        return f"{self.root}/destinations/{destination}"

    def running(self, destination: str) -> str:
        """The ephemeral node whose creator leads the destination."""
        return f"{self.destination(destination)}/running"

    def members(self, destination: str) -> str:
        """The parent of an ephemeral node for each server that has the destination."""
        return f"{self.destination(destination)}/cluster"

    def leader(self, destination: str) -> str:
        """The node with the leadership epoch. It stays when the leader goes."""
        return f"{self.destination(destination)}/towpath/leader"

    def client(self, destination: str, client_id: int) -> str:
        return f"{self.destination(destination)}/{client_id}"

    def client_running(self, destination: str, client_id: int) -> str:
        """The ephemeral node whose creator is the one client of its id that works."""
        return f"{self.client(destination, client_id)}/running"

    def client_members(self, destination: str, client_id: int) -> str:
        return f"{self.client(destination, client_id)}/cluster"


@dataclass(frozen=True)
class ServerNode:
    """A server as others reach it."""

    address: str
    """``host:port`` of Canal's protocol; of HTTP if it does not speak that."""
    http: str | None = None
    """``https://host:port``; None for one that has no HTTP, as Canal's own."""


@dataclass(frozen=True)
class LeaderRecord:
    """The newest leadership of a destination. Its leader may be gone."""

    epoch: int
    """From 1 on; each leadership has a larger one."""
    server: ServerNode
    nonce: str
    """Made by the leader at random. By it a leader knows its own record if the answer to its election was lost."""
    since_ms: int
    """When the leadership began, ms since 1970, by the leader's clock."""

    def render(self) -> bytes:
        return _json(
            {
                "version": LEADER_VERSION,
                "epoch": self.epoch,
                "address": self.server.address,
                "http": self.server.http,
                "nonce": self.nonce,
                "since": self.since_ms,
            }
        )


def parse_leader(data: bytes, place: str) -> LeaderRecord | None:
    """Parses the node ``leader``; None if it is empty. Raises DamagedError, VersionError."""
    if not data:
        return None
    remedy = (
        "Stop all servers of this destination, and delete the node; its epochs begin again at 1, which nothing minds "
        "while no server runs."
    )
    document = _object(data, place, remedy)
    require_version(document.get("version"), LEADER_VERSION, place)
    try:
        epoch, address, nonce, since = (document[key] for key in ("epoch", "address", "nonce", "since"))
        http = document.get("http")
        if not (isinstance(epoch, int) and epoch > 0 and isinstance(since, int)):
            raise TypeError
        if not (isinstance(address, str) and isinstance(nonce, str) and isinstance(http, str | None)):
            raise TypeError
    except (KeyError, TypeError):
        raise DamagedError("is not the record of a leadership", place=place, remedy=remedy) from None
    return LeaderRecord(epoch, ServerNode(address, http), nonce, since)


def render_running(address: str, epoch: int) -> bytes:
    """Returns Canal's ServerRunningData. No client reads ``cid``, a server's number in Canal; here it is the epoch."""
    return _json({"active": True, "address": address, "cid": epoch})


def render_client(address: str, client_id: int) -> bytes:
    """Returns Canal's ClientRunningData."""
    return _json({"active": True, "address": address, "clientId": client_id})


def render_member(server: ServerNode) -> bytes:
    """Returns the content of a member's node, which is empty in Canal."""
    return _json({"http": server.http})


def parse_running(data: bytes, place: str) -> str | None:
    """Returns the address in ServerRunningData or ClientRunningData; None for one that is not active. Raises
    DamagedError."""
    document = _object(data, place, "Stop the program that wrote it; the node vanishes with its session.")
    address = document.get("address")
    if not isinstance(address, str):
        raise DamagedError("names no address", place=place, remedy="Stop the program that wrote it.")
    return address if document.get("active", True) else None


def parse_member(address: str, data: bytes) -> ServerNode:
    """Returns the server of a member's node; Canal's own have no content."""
    try:
        document = json.loads(data) if data else {}
    except ValueError:
        document = {}
    http = document.get("http") if isinstance(document, dict) else None
    return ServerNode(address, http if isinstance(http, str) else None)


def address_of(text: str) -> Address:
    """Parses ``host:port`` as Canal's clients do: they split it at the colon, so that IPv6 addresses have no place.
    Raises ConfigError."""
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ConfigError(f"{text!r} is not an address of a server in Canal's tree; it is like 10.0.0.7:11111")
    return Address(match[1], int(match[2]))


def _object(data: bytes, place: str, remedy: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise DamagedError("is not a JSON object", place=place, remedy=remedy)
    return document


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
