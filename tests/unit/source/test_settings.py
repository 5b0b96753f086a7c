"""Advice about the server's settings: value, reason, statement, and the way on managed services."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.source import settings
from cdc.source.settings import RDS_RETENTION, Service, for_service, service_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "prepare-source.md"


@pytest.mark.parametrize(
    ("host", "version", "service"),
    [
        ("shop.c1abc.eu-central-1.rds.amazonaws.com", "8.0.36", Service.RDS),
        ("SHOP.cluster-c1abc.eu-central-1.RDS.amazonaws.com", "8.0.28", Service.AURORA),
        ("shop.cluster-ro-c1abc.us-east-1.rds.amazonaws.com", "8.0.28", Service.AURORA),
        ("shop.abc.rds.cn-north-1.amazonaws.com.cn", "8.0.36", Service.RDS),
        ("10.0.0.3", "8.0.31-google", Service.CLOUD_SQL),
        ("Shop.mysql.database.azure.com", "8.0.39", Service.AZURE),
        ("db.example", "9.7.4", None),
    ],
)
def test_services_are_recognised(host: str, version: str, service: Service | None) -> None:
    assert service_of(host, version) is service


def test_a_setting_has_value_reason_statement_and_the_services_own_way() -> None:
    [finding] = settings.METADATA.check({"binlog_row_metadata": "MINIMAL"})
    advice = finding.advice
    assert advice is not None and finding.level == "warning" and advice.then is None
    assert advice.value == "binlog_row_metadata = MINIMAL" and "rows name no columns" in advice.why
    assert advice.statements == ("SET GLOBAL binlog_row_metadata = FULL;",)
    assert advice.keep == "binlog_row_metadata = FULL"
    assert advice.managed["Amazon RDS"] == "in the instance's parameter group: binlog_row_metadata = FULL"
    service_advice = for_service(finding, Service.CLOUD_SQL).advice
    assert service_advice is not None and service_advice.statements == () and service_advice.keep is None
    assert service_advice.managed == {"Cloud SQL": "as a database flag: binlog_row_metadata = FULL"}
    service_advice = for_service(finding, Service.AZURE).advice
    assert service_advice is not None and service_advice.statements == ()
    assert service_advice.managed == {"Azure Database for MySQL": "its users cannot change binlog_row_metadata"}
    assert for_service(finding, None) is finding
    # Cloud SQL always writes rows, so nothing can be set there.
    [finding] = settings.FORMAT.check({"binlog_format": "MIXED"})
    assert for_service(finding, Service.CLOUD_SQL) is finding
    assert list(settings.FORMAT.check({"binlog_format": "row"})) == []


def test_amazons_own_retention_counts() -> None:
    [finding] = settings.check_rds_retention(0)
    assert "binlog retention hours is NULL" in finding.message and finding.remedy == RDS_RETENTION
    [finding] = settings.check_rds_retention(7200)
    assert finding.advice is not None and finding.advice.value == "binlog retention hours = 2"
    assert list(settings.check_rds_retention(86400)) == []


def test_the_page_for_administrators_has_the_ways_of_managed_services() -> None:
    page = PAGE.read_text()
    assert RDS_RETENTION in page
    assert all(
        f"{setting.name} = {setting.required}" in page
        for setting in (settings.FORMAT, settings.IMAGE, settings.METADATA)
    )
    assert all(str(service) in page for service in Service)
