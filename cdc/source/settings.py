"""The server's settings that capture depends on: the value that is needed, the reason, and how to set it.

A server of one's own takes a statement, a managed one has a parameter or a flag for it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from cdc.source.findings import Advice, Finding, error, warning


class Service(enum.StrEnum):
    """A managed service. The value is its name for users."""

    RDS = "Amazon RDS"
    AURORA = "Amazon Aurora"
    CLOUD_SQL = "Cloud SQL"
    AZURE = "Azure Database for MySQL"


_AMAZON = re.compile(r".*\.rds(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?")
_AZURE = re.compile(r".*\.mysql\.database\.(azure\.com|chinacloudapi\.cn|usgovcloudapi\.net)")
_CLUSTER = (".cluster-", ".cluster-ro-", ".cluster-custom-")


def service_of(host: str, version: str) -> Service | None:
    """Returns the managed service at this host, as its name and the server's version tell; None for any other server.
    An address of one's own in front of a service is not recognised, except for Cloud SQL."""
    host = host.lower()
    if _AMAZON.fullmatch(host):
        return Service.AURORA if any(part in host for part in _CLUSTER) else Service.RDS
    if _AZURE.fullmatch(host):
        return Service.AZURE
    return Service.CLOUD_SQL if version.lower().endswith("-google") else None


def for_service(finding: Finding, service: Service | None) -> Finding:
    """Returns the finding for a server of this service: with the service's own way alone, because it does not allow the
    statements. A finding for which the service has no way stays as it is."""
    advice = finding.advice
    if service is None or advice is None or str(service) not in advice.managed:
        return finding
    managed = {str(service): advice.managed[service]}
    return replace(finding, advice=replace(advice, statements=(), keep=None, managed=managed))


@dataclass(frozen=True)
class Setting:
    """A global variable that should have one value."""

    name: str
    required: str
    why: str
    """The consequence of any other value; a clause."""
    level: Literal["error", "warning"] = "error"
    """Whether any other value is an error or a warning."""
    of_sessions: bool = True
    """Whether sessions keep the value that they began with."""

    def check(self, values: Mapping[str, str]) -> Iterator[Finding]:
        """Yields a finding if the server has the variable with another value."""
        value = values.get(self.name, self.required)
        if value.upper() != self.required:
            setting = f"{self.name}={self.required}"
            remedy = f"SET GLOBAL {setting}; and {setting} in the server's configuration."
            if self.of_sessions:
                remedy += " Then reconnect the applications, because sessions keep the setting they began with."
            yield (error if self.level == "error" else warning)(
                f"source: {self.name}",
                f"{self.name} is {value}; {self.why}",
                remedy,
                Advice(
                    f"{self.name} = {value}",
                    self.why,
                    (f"SET GLOBAL {self.name} = {self.required};",),
                    keep=f"{self.name} = {self.required}",
                    managed=_managed(self.name, self.required),
                    then="Reconnect the applications: sessions keep the value that they began with."
                    if self.of_sessions
                    else None,
                ),
            )


FORMAT = Setting("binlog_format", "ROW", "changes would arrive as statements, which cannot be turned into rows")
IMAGE = Setting("binlog_row_image", "FULL", "rows would arrive without some columns")
METADATA = Setting(
    "binlog_row_metadata",
    "FULL",
    "rows name no columns, so capture takes the names from the server's tables, and has to keep up while tables are "
    "altered",
    level="warning",
    of_sessions=False,
)
CHECKED = (FORMAT, IMAGE, METADATA)
SHORT_RETENTION_S = 24 * 3600
"""Binlog files that are kept for less are a warning."""

_OFFERED: Mapping[Service, tuple[str, tuple[str, ...]]] = {
    Service.RDS: ("in the instance's parameter group:", (FORMAT.name, IMAGE.name, METADATA.name)),
    Service.AURORA: ("in the cluster's parameter group:", (FORMAT.name, IMAGE.name, METADATA.name)),
    Service.CLOUD_SQL: ("as a database flag:", (IMAGE.name, METADATA.name)),  # it always writes rows
    Service.AZURE: ("in the server parameters:", (IMAGE.name,)),  # it always writes rows
}
"""For each service, the words that say where its settings are changed, and the settings that users may change there."""


def _managed(name: str, value: str) -> dict[str, str]:
    ways = {str(service): f"{place} {name} = {value}" for service, (place, names) in _OFFERED.items() if name in names}
    if name == METADATA.name:
        ways[str(Service.AZURE)] = f"its users cannot change {name}"
    return ways


_LOG_BIN = {
    str(Service.RDS): "set the backup retention period above 0 days",
    str(Service.AURORA): "in the cluster's parameter group: binlog_format = ROW, then restart",
    str(Service.CLOUD_SQL): "enable point-in-time recovery",
}


def no_binlog() -> Finding:
    """Returns the error for a server that writes no binlog."""
    return error(
        "source: log_bin",
        "the server writes no binlog (log_bin is OFF)",
        "Start it with log_bin=binlog, server_id=N and binlog_format=ROW.",
        Advice(
            "log_bin = OFF",
            "there is nothing to capture",
            (),
            keep="log_bin = binlog, server_id = N, binlog_format = ROW",
            managed=_LOG_BIN,
            then="Restart the server: log_bin cannot be changed while it runs.",
        ),
    )


def short_retention(seconds: float, values: Mapping[str, str]) -> Finding:
    """Returns the warning for binlog files that are kept for less than a day."""
    new = "binlog_expire_logs_seconds" in values
    name, value = ("binlog_expire_logs_seconds", "604800") if new else ("expire_logs_days", "7")
    why = "a capture that is stopped for longer loses changes"
    return warning(
        "source: retention",
        f"the server purges binlog files after {seconds / 3600:.1f} h; {why}",
        f"SET GLOBAL {name}={value}; and set it in the server's configuration.",
        Advice(
            f"{name} = {values.get(name, '')}",
            why,
            (f"SET GLOBAL {name} = {value};",),
            keep=f"{name} = {value}",
            managed={
                str(Service.RDS): RDS_RETENTION,
                str(Service.AURORA): RDS_RETENTION,
                str(Service.CLOUD_SQL): f"as a database flag: {name} = {value}",
                str(Service.AZURE): f"in the server parameters: {name} = {value}",
            },
        ),
    )


RDS_RETENTION = "CALL mysql.rds_set_configuration('binlog retention hours', 168);"


def check_rds_retention(seconds: float | None) -> Iterator[Finding]:
    """Yields a warning if Amazon's setting, which overrules that of the server, keeps files for less than a day.
    ``seconds`` is 0 for Amazon's default, to purge as soon as it can."""
    if seconds is None or seconds >= SHORT_RETENTION_S:
        return
    why = "a capture that is stopped for longer loses changes"
    hours = f"{seconds / 3600:g}" if seconds else "NULL"
    how = f"after {hours} h" if seconds else "as soon as it can"
    yield warning(
        "source: retention",
        f"the service purges binlog files {how} (binlog retention hours is {hours}); {why}",
        RDS_RETENTION,
        Advice(
            f"binlog retention hours = {hours}",
            why,
            (RDS_RETENTION,),
            managed={str(Service.RDS): RDS_RETENTION, str(Service.AURORA): RDS_RETENTION},
        ),
    )
