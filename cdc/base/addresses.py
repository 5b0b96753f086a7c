"""Network addresses as users write them: ``host:port``, with brackets around an IPv6 address."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from cdc.base.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses ``host:port`` or ``[::1]:port``. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r} is not an address; write host:port")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine itself, reached without a network."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_host(host: str) -> str:
    """Returns a host that may stand in Canal's tree of nodes: a name, or an IPv4 address that others can reach. Raises
    ValueError."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ValueError("is neither a host's name nor an IPv4 address") from None
        return host
    if address.version != 4:
        raise ValueError("is an IPv6 address, which Canal's tree has no place for; give a host's name")
    if address.is_unspecified:
        raise ValueError("is no address that others can reach; give the one of this machine")
    return host
