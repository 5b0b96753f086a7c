"""The server that wrote a statement, as far as the meaning of its text depends on it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(r"(?:5\.5\.5-)?(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A flavor and a version."""

    mariadb: bool
    version: tuple[int, int, int]

    @classmethod
    def parse(cls, text: str) -> ServerVersion | None:
        """Reads the version of a binlog's format description, such as ``11.8.3-MariaDB-log``; None if it is none."""
        match = _VERSION.match(text)
        if match is None:
            return None
        version = (int(match[1]), int(match[2]), int(match[3] or 0))
        return cls("mariadb" in text.lower() or text.startswith("5.5.5-"), version)

    @property
    def shows_widths(self) -> bool:
        """Whether a column's type has the display width of its integers and its YEAR: ``int(11)``."""
        return self.mariadb or self.version < (8, 0, 19)

    @property
    def utf8(self) -> str:
        """The name of the character set UTF-8 with at most three bytes."""
        return "utf8mb3" if self.version >= ((10, 6, 0) if self.mariadb else (8, 0, 24)) else "utf8"


LATEST = ServerVersion(mariadb=False, version=(9, 0, 0))
"""Stands in for an unknown server. Types that differ between servers are MySQL's then."""
