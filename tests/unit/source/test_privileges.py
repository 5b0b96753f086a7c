"""Findings about privileges, from the lines of SHOW GRANTS."""

from __future__ import annotations

from typing import Literal

import pytest

from cdc.source.privileges import check_privileges, parse_grants
from cdc.source.server import ServerInfo

_REPLICATION = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT{} ON *.* TO 'cdc'@'%'"


@pytest.mark.parametrize(
    ("flavor", "version", "mode", "more", "warned"),
    [
        ("mysql", (5, 6, 24), "ON", "", True),
        ("mysql", (5, 6, 24), None, ", PROCESS", False),
        ("mysql", (9, 7, 4), "ON", "", False),
        ("mysql", (9, 7, 4), "ON_PERMISSIVE", "", True),
        ("mysql", (9, 7, 4), "OFF", "", True),
        ("mysql", (9, 7, 4), "OFF", ", PROCESS", False),
        ("mariadb", (11, 8, 9), None, "", False),
    ],
)
def test_snapshots_of_mysql_without_gtids_need_to_see_other_sessions(
    flavor: Literal["mysql", "mariadb"], version: tuple[int, ...], mode: str | None, more: str, warned: bool
) -> None:
    info = ServerInfo(flavor, ".".join(map(str, version)), version, "uuid", 1)
    findings = check_privileges(info, parse_grants([_REPLICATION.format(more)]), "'cdc'@'%'", mode)
    assert findings[0].level == "ok"
    assert [f.remedy for f in findings if f.level == "warning"] == (
        ["GRANT PROCESS ON *.* TO 'cdc'@'%';"] if warned else []
    )
