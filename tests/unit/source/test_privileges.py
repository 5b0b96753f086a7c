"""Findings about privileges, from the lines of SHOW GRANTS."""

from __future__ import annotations

import pytest

from cdc.source.privileges import check_privileges, parse_grants
from cdc.source.server import ServerInfo

_REPLICATION = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT{} ON *.* TO 'cdc'@'%'"


@pytest.mark.parametrize(
    ("version", "more", "warned"),
    [((5, 6, 24), "", True), ((5, 6, 24), ", PROCESS", False), ((9, 7, 4), "", False)],
)
def test_snapshots_of_mysql_56_need_to_see_other_sessions(version: tuple[int, ...], more: str, warned: bool) -> None:
    info = ServerInfo("mysql", ".".join(map(str, version)), version, "uuid", 1)
    found = check_privileges(info, parse_grants([_REPLICATION.format(more)]), "'cdc'@'%'")
    assert found[0].level == "ok"
    assert [f.remedy for f in found if f.level == "warning"] == (
        ["GRANT PROCESS ON *.* TO 'cdc'@'%';"] if warned else []
    )
