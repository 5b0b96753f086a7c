"""Servers that are too old or too new to be captured."""

from __future__ import annotations

import pytest

from cdc.source.preflight import _check_version
from cdc.source.server import ServerInfo, parse_version


@pytest.mark.parametrize(
    ("version", "levels", "words"),
    [
        ("5.5.62-log", ["error"], "too old"),
        ("5.6.51-log", [], ""),
        ("9.7.4", [], ""),
        ("10.0.38-MariaDB", ["error"], "too old"),
        ("10.4.34-MariaDB", ["warning"], "older than the oldest MariaDB"),
        ("12.2.1-MariaDB", [], ""),
        ("12.3.1-MariaDB-log", ["error"], "too new"),
        ("13.0.1-MariaDB", ["error"], "too new"),
    ],
)
def test_versions(version: str, levels: list[str], words: str) -> None:
    flavor = "mariadb" if "MariaDB" in version else "mysql"
    info = ServerInfo(flavor, version, parse_version(version), "", 1)  # type: ignore[arg-type]
    findings = list(_check_version(info))
    assert [finding.level for finding in findings] == levels
    assert all(words in finding.message and finding.remedy for finding in findings)
