"""The watermark of a source that is a replica: what its own source has committed may be missing there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cdc.capture.watermark import WatermarkTracker
from cdc.config.loading import parse
from cdc.source.connection import connect
from cdc.source.preflight import examine
from cdc.testing.servers import HOST, PASSWORD, USER
from cdc.testing.servers.replicas import ReplicaPair
from tests.support.failovers import wait_for


class Passed:
    """A session that has passed every position, and a store in which everything is visible."""

    epoch, published, visible = 1, 0, 0

    def has_passed(self, position: Any) -> bool:
        return True


def configuration(url: str) -> str:
    return f"""
source: {{url: '{url}', password_env: TEST_PASSWORD, server_id: 4711, start: earliest}}
tables: {{include: ['shop\\.t']}}
store: {{path: ./store}}
meta: {{path: ./meta}}
apply: {{target: ./lake}}
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mysql9", pytest.param("mariadb11", marks=pytest.mark.long)])
def test_it_stays_behind_a_replica_that_lags_and_stands_while_replication_has_stopped(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PASSWORD", PASSWORD)
    given: Any = Passed()
    scheme = "mysql" if kind.startswith("mysql") else "mariadb"
    with ReplicaPair(kind) as pair:
        pair.replica.execute("SET GLOBAL read_only = ON")
        pair.primary.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        pair.wait_level()
        url = f"{scheme}://{USER}@{HOST}:{pair.replica.port}"
        config = parse(configuration(url), tmp_path / "conf" / "shop.yaml")
        conn = connect(config.source)
        watermark = WatermarkTracker(records=False)

        def behind_s() -> float:
            """Returns the seconds by which the watermark is behind the source's clock after a probe."""
            watermark.probe(conn)
            watermark.settle(given, given)
            return (watermark.clock.time_us - watermark.complete_until_us) / 1e6

        def said() -> list[str]:
            findings = examine(config, conn)
            return [
                f"{finding.level}: {finding.message}"
                for finding in findings
                if finding.subject == "source: replication"
            ]

        wait_for("the replica has no lag", lambda: said() == ["ok: the server is a replica, 0 s behind"])
        # A second of the lag in whole seconds, and the margin.
        wait_for("the watermark has the lag", lambda: behind_s() == 2.0)
        with pair.replica.connect() as holder, holder.cursor() as cursor:
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            pair.primary.execute("INSERT INTO shop.t VALUES (1)")
            time.sleep(5)
            assert behind_s() > 4.0, "the replica cannot apply the row"
            cursor.execute("UNLOCK TABLES")
        pair.wait_level()
        wait_for("the replica has no lag", lambda: behind_s() == 2.0)
        pair.pause_replica()
        time.sleep(2)
        first, second = behind_s(), behind_s()
        assert 4.0 <= first <= second, "the watermark stands"
        (only,) = said()
        assert only.startswith("warning: the server is a read-only replica that does not replicate now")
        pair.resume_replica()
        pair.wait_level()
        wait_for("the replica has no lag", lambda: behind_s() == 2.0)
        pair.promote()
        pair.replica.execute("SET GLOBAL read_only = OFF")
        assert behind_s() == 1.0, "it is a server of its own now"
        assert said() == []
        conn.close()


@pytest.mark.long
def test_an_account_that_may_not_see_the_lag_is_told_what_to_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_PASSWORD", "secret-7")
    given: Any = Passed()
    with ReplicaPair("mariadb11") as pair:
        pair.primary.execute(
            "CREATE USER cdc@'%' IDENTIFIED BY 'secret-7'",
            "GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO cdc@'%'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY)",
        )
        pair.wait_level()
        config = parse(configuration(f"mariadb://cdc@{HOST}:{pair.replica.port}"), tmp_path / "conf" / "shop.yaml")
        conn = connect(config.source)
        (only,) = [finding for finding in examine(config, conn) if finding.subject == "source: replication"]
        assert (only.level, only.remedy) == ("warning", "GRANT SLAVE MONITOR ON *.* TO 'cdc'@'%'")
        watermark = WatermarkTracker(records=False)
        watermark.probe(conn)
        watermark.settle(given, given)
        assert watermark.clock.time_us - watermark.complete_until_us == 1_000_000, "as if it were no replica"
        conn.close()
