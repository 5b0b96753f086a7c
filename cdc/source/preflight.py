"""The preflight: checks whether a server can be captured without loss, and names the setting to change if not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isinf

from cdc.base.errors import CdcError, SourceRefusedError
from cdc.base.log import get_logger
from cdc.binlog.gtids import parse_state, show_state
from cdc.config import DestinationConfig, SourceConfig
from cdc.config.memory import NO_LAKE
from cdc.source import settings
from cdc.source.connection import connect, place_of, query
from cdc.source.findings import Finding, error, from_error, of_apply, ok, warning
from cdc.source.history import executed_gtids
from cdc.source.privileges import check_privileges, check_visibility, read_grants, unreadable
from cdc.source.purge import read_retention
from cdc.source.schemas import check_members, list_tables, merge_tables, read_schemas
from cdc.source.server import (
    Connection,
    Flavor,
    ServerInfo,
    behind_s,
    describe,
    replica_label,
    replicas,
    server_version,
    status_statement,
    variables,
)
from cdc.source.table_checks import (
    check_engines,
    check_foreign_keys,
    check_generated,
    check_key_dates,
    check_names,
    check_policies,
    check_tables,
)

__all__ = ["Finding", "check_source", "check_standbys", "examine", "examine_server", "require_source"]

_RELAY_VARIABLES = ("log_slave_updates", "log_replica_updates")
_VARIABLES = (
    "log_bin",
    "binlog_format",
    "binlog_row_image",
    "binlog_row_metadata",
    "binlog_storage_engine",
    "binlog_expire_logs_seconds",
    "binlog_expire_logs_auto_purge",
    "expire_logs_days",
    "gtid_mode",
    "lower_case_table_names",
    "sql_mode",
    *_RELAY_VARIABLES,
)
# Older servers lack binlog_row_image, which guarantees whole rows, and use unsupported formats.
_OLDEST: Mapping[Flavor, tuple[int, int]] = {"mysql": (5, 6), "mariadb": (10, 1)}

_UNREADABLE = (12, 3)
"""The first MariaDB whose binlog has events that cannot be read."""

log = get_logger(__name__)


def check_source(
    config: DestinationConfig, *, own_capture_running: bool = False, first_start: bool = False
) -> list[Finding]:
    """Connects and returns all findings, good ones included, the most basic first.

    ``first_start`` says that the store is empty, so that capture will begin at ``source.start``. Raises what
    :func:`~cdc.source.connection.connect` raises.
    """
    conn = connect(config.source)
    try:
        return examine(config, conn, own_capture_running=own_capture_running, first_start=first_start)
    finally:
        conn.close()


def require_source(config: DestinationConfig, conn: Connection) -> None:
    """Raises SourceRefusedError with the first error that makes capture impossible. Logs the warnings, and the errors
    that stop only apply, if there is a lake: a table that a DDL statement has made unfit must not cost the changes of
    the others."""
    findings = examine(config, conn)
    errors = [f for f in findings if f.level == "error" and f.stops == "capture"]
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more: see `cdc check {config.name}`)" if len(errors) > 1 else ""
        raise SourceRefusedError(f"{first.message}{more}", place=first.subject, remedy=first.remedy)
    for finding in findings:
        if finding.level == "error":
            if config.apply.target == NO_LAKE:
                continue
            log.warning(
                "capture goes on, but apply will refuse the table",
                subject=finding.subject,
                error=finding.message,
                remedy=finding.remedy,
            )
        elif finding.level == "warning":
            log.warning(finding.message, subject=finding.subject, remedy=finding.remedy)


def examine_server(conn: Connection) -> list[Finding]:
    """Returns the findings about the server and the user of an open connection, in a few queries, without a
    destination: product and version, binlog settings, GTIDs, privileges."""
    info = describe(conn)
    values = variables(conn, _VARIABLES)
    account = account_of(conn)
    findings = [ok("source", f"{info.product} answers, the user is {account}"), *_check_version(info)]
    findings += _settings(values)
    if info.flavor == "mariadb" or values.get("gtid_mode") == "ON":
        findings.append(ok("source: gtid", "transactions have GTIDs"))
    else:
        findings.append(ok("source: gtid", "transactions have no GTIDs (positions are used)"))
    return findings + check_privileges(info, read_grants(conn), account, values.get("gtid_mode"))


def examine(
    config: DestinationConfig, conn: Connection, *, own_capture_running: bool = False, first_start: bool = False
) -> list[Finding]:
    """Returns all findings over an open connection. Stops after an error that makes further checks pointless."""
    service = settings.service_of(config.source.host, server_version(conn))
    findings = _examine(config, conn, own_capture_running, first_start)
    return [settings.for_service(finding, service) for finding in findings]


def _examine(
    config: DestinationConfig, conn: Connection, own_capture_running: bool, first_start: bool
) -> list[Finding]:
    info = describe(conn)
    findings = [ok("source", f"{info.product} at {place_of(config.source)}")]
    findings += check_kind(config, info)
    if any(f.level == "error" for f in findings):
        return findings
    values = variables(conn, _VARIABLES)
    findings += _settings(values)
    findings += _case_of_names(config, values)
    findings += _standbys(config.source, info, values)
    if first_start and not info.names_columns and config.source.start not in ("now", "snapshot"):
        findings.append(_nameless_past(config.source))
    if values.get("log_bin") != "ON":
        return findings
    account = account_of(conn)
    grants = read_grants(conn)
    privileges = check_privileges(info, grants, account, values.get("gtid_mode"))
    findings += privileges
    findings += _server_ids(config, conn, info, own_capture_running)
    findings += _retention(conn, values)
    names = list_tables(conn, config.tables)
    databases = {db for db, _ in names}
    findings += check_names(names)
    if all(f.level != "error" for f in privileges):
        findings += _filters(config.source, info, conn, databases)
    findings += _relay(conn, values)
    findings += check_visibility(config.tables, len(names), databases, grants, account)
    hidden = unreadable(conn, names, grants)
    for name in sorted(f"{db}.{table}" for db, table in names):
        if name in hidden:
            findings.append(
                error(
                    f"table {name}",
                    f"{account} may not SELECT all of its columns, so their types and values are unknown",
                    f"GRANT SELECT ON `{name.replace('.', '`.`', 1)}` TO {account};",
                )
            )
    schemas = read_schemas(conn, config.tables)
    about = [*check_tables(config, schemas), *check_policies(config, schemas)]
    about += check_foreign_keys(config, schemas)
    about += check_key_dates(config, schemas, values.get("sql_mode", ""))
    if info.flavor == "mariadb" and info.version_info >= (11, 8):
        about += check_generated(config, schemas)
    about = [of_apply(f) for f in about]
    about += check_engines(schemas, merge_tables(conn, config.tables))
    if not info.names_columns:
        about += check_members(config, schemas)
    findings += [f for f in about if f.subject.removeprefix("table ") not in hidden]
    return findings


def account_of(conn: Connection) -> str:
    """Returns the user that the server took the connection for, as GRANT writes it."""
    user, _, host = str(query(conn, "SELECT CURRENT_USER() AS account")[0]["account"]).rpartition("@")
    return f"'{user}'@'{host}'"


def _nameless_past(source: SourceConfig) -> Finding:
    where = source.start if isinstance(source.start, str) else "a position in the past"
    return warning(
        "source: start",
        f"source.start is {where}, and rows there name no columns: capture begins there only if no table was altered "
        "behind rows of it since then, and has to read the binlog twice to know that",
        "If capture is refused there, set source.start to snapshot.",
    )


def check_kind(config: DestinationConfig, info: ServerInfo) -> Iterator[Finding]:
    """Checks that the server is of the kind that the URL names, and neither too old nor too new."""
    if info.flavor != config.source.flavor:
        yield error(
            "source: url",
            f"source.url says {config.source.flavor}://, but the server is {info.product}",
            f"Write the URL with {info.flavor}://.",
        )
    yield from _check_version(info)


def _check_version(info: ServerInfo) -> Iterator[Finding]:
    minimum = _OLDEST[info.flavor]
    if info.version_info < minimum:
        name = f"{'MariaDB' if info.flavor == 'mariadb' else 'MySQL'} {minimum[0]}.{minimum[1]}"
        yield error(
            "source: version",
            f"{info.product} is too old: its binlog does not guarantee whole rows",
            f"Capture a server of {name} or later.",
        )
    elif info.flavor == "mariadb" and info.version_info >= _UNREADABLE:
        yield error(
            "source: version",
            f"{info.product} is too new: its events of large rows come in pieces, which cannot be read yet",
            "Capture a MariaDB of 12.2 or earlier.",
        )
    elif info.flavor == "mariadb" and info.version_info < (10, 5):
        yield warning(
            "source: version",
            f"{info.product} is older than the oldest MariaDB that Towpath is tested with (10.5)",
            "It is read like later versions without metadata. Compare some tables before you rely on it.",
        )


def _settings(values: Mapping[str, str]) -> Iterator[Finding]:
    if values.get("log_bin") != "ON":
        yield settings.no_binlog()
        return
    troubles = [finding for setting in settings.CHECKED for finding in setting.check(values)]
    if values.get("binlog_storage_engine"):
        troubles.append(
            error(
                "source: binlog_storage_engine",
                f"a binlog inside {values['binlog_storage_engine']} is not supported yet",
                "Unset binlog_storage_engine, so that the server writes binlog files.",
            )
        )
    yield from troubles
    if not troubles:
        metadata = "FULL metadata" if "binlog_row_metadata" in values else "no metadata (the server is too old for it)"
        yield ok("source: binlog", f"ROW format, FULL image, {metadata}")


def _case_of_names(config: DestinationConfig, values: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that the server compares names as the configuration says."""
    actual, ours = int(values.get("lower_case_table_names", 0)), config.tables.lower_case_table_names
    if bool(actual) != bool(ours):
        yield error(
            "source: lower_case_table_names",
            f"the server's lower_case_table_names is {actual}, and tables.lower_case_table_names is {ours}, so that "
            f"{'one table' if actual else 'several tables'} would be taken for {'several' if actual else 'one'}",
            f"Set tables.lower_case_table_names: {actual}.",
        )


def _standbys(source: SourceConfig, info: ServerInfo, values: Mapping[str, str]) -> Iterator[Finding]:
    """Checks that transactions have GTIDs, without which there is no way from one server to another."""
    if not source.standbys or info.flavor == "mariadb" or values.get("gtid_mode", "OFF").upper() == "ON":
        return
    yield error(
        "source: gtid_mode",
        f"source.standbys is set, and gtid_mode is {values.get('gtid_mode', 'OFF')}: capture could not tell where to "
        "go on with a standby",
        "Set gtid_mode=ON and enforce_gtid_consistency=ON on the server and its standbys, or remove source.standbys.",
    )


def check_standbys(config: DestinationConfig, current: SourceConfig) -> list[Finding]:
    """Examines the source's servers other than ``current``, which capture reads, as :func:`check_source` does, and
    compares their GTIDs. Returns the errors and warnings, or one finding that says that a standby is ready."""
    findings: list[Finding] = []
    for source in config.source.servers():
        if source.address == current.address:
            continue
        place = f"standby {source.address}"
        try:
            conn = connect(source)
        except CdcError as trouble:
            findings.append(from_error(place, trouble))
            continue
        with conn:
            other = config.at_server(source.address)
            troubles = [finding for finding in examine(other, conn) if finding.level != "ok"]
            troubles = [replace(finding, subject=f"{place}: {finding.subject}") for finding in troubles]
            troubles += _standby_relay(conn, place)
            troubles += _errant(current, conn, place)
        findings += troubles or [ok(place, "it could take the server's place")]
    return findings


def _standby_relay(conn: Connection, place: str) -> Iterator[Finding]:
    """Checks that a standby logs the changes that it applies."""
    if not _logs_what_it_applies(variables(conn, _RELAY_VARIABLES)):
        yield error(
            f"{place}: log_replica_updates",
            "it does not log the changes that it applies, so that its binlog lacks them",
            "Start it with log_replica_updates=ON (log_slave_updates=ON on MariaDB and before MySQL 8.0.26).",
        )


def _logs_what_it_applies(values: Mapping[str, str]) -> bool:
    return values.get("log_replica_updates", values.get("log_slave_updates", "ON")) == "ON"


def _errant(current: SourceConfig, conn: Connection, place: str) -> Iterator[Finding]:
    """Checks that the standby has no transactions that the server lacks. The standby is asked first, so that it cannot
    have got them meanwhile."""
    flavor = current.flavor
    standby_gtids = parse_state(executed_gtids(conn, flavor) or "", flavor)
    with connect(current) as primary:
        primary_gtids = parse_state(executed_gtids(primary, flavor) or "", flavor)
    errant = standby_gtids - primary_gtids
    if errant:
        yield error(
            f"{place}: gtids",
            f"it has {errant.count} transactions that the server lacks (errant transactions): "
            f"{show_state(errant, flavor)}",
            "Set read_only (super_read_only) on standbys. Remove these transactions, or make them known to the server, "
            "before this standby is promoted; docs/how-to/failover.md says how.",
        )


def _server_ids(
    config: DestinationConfig, conn: Connection, info: ServerInfo, own_capture_running: bool
) -> Iterator[Finding]:
    subject, server_id = "source: server_id", config.source.server_id
    remedy = "Set source.server_id to a number that no server and no replica of this source uses."
    if info.server_id == 0:
        yield error(subject, "the server's own server_id is 0, so it accepts no replica", "SET GLOBAL server_id=1;")
        return
    if info.server_id == server_id:
        yield error(subject, f"{server_id} is the source's own server_id", remedy)
        return
    try:
        others = replicas(conn)
    except SourceRefusedError:
        yield ok(subject, f"{server_id} is not the server's own server_id (the user may not list its replicas)")
        return
    label = replica_label(config)
    same = [r for r in others if r.server_id == server_id]
    # The connection of a killed capture stays until the next heartbeat. The server replaces it by the new one.
    if all(r.host == label for r in same):
        yield ok(subject, f"{server_id} is used by this capture" if same else f"{server_id} is free")
    elif own_capture_running:
        yield ok(subject, f"{server_id} is used by the running capture")
    else:
        host = f" at {same[0].host}" if same[0].host else ""
        yield error(
            subject, f"another replica{host} uses {server_id}; the server would disconnect one of the two", remedy
        )


def _retention(conn: Connection, values: Mapping[str, str]) -> Iterator[Finding]:
    subject = "source: retention"
    kept = read_retention(conn, values)
    if kept.by_service:
        yield from settings.check_rds_retention(kept.seconds)
    elif kept.seconds is not None and kept.seconds < settings.SHORT_RETENTION_S:
        yield settings.short_retention(kept.seconds, values)
    if kept.seconds is None:
        yield ok(subject, "the server keeps its binlog files until they are purged by hand")
    elif kept.seconds >= settings.SHORT_RETENTION_S:
        yield ok(subject, f"the server keeps binlog files for {kept.seconds / 86400:.1f} days")


def _filters(source: SourceConfig, info: ServerInfo, conn: Connection, databases: set[str]) -> Iterator[Finding]:
    """Checks that ``binlog_do_db`` and ``binlog_ignore_db`` exclude neither an included database nor statements from
    the binlog. Rows are filtered by the database of their table, statements by the default database of the session;
    MariaDB's ``binlog_do_db`` also excludes those of sessions without one (tried on MySQL 5.6 and 9, MariaDB 10.5 and
    11.8)."""
    rows = query(conn, status_statement(conn))
    if not rows:
        return
    only = set(filter(None, str(rows[0].get("Binlog_Do_DB") or "").split(",")))
    never = set(filter(None, str(rows[0].get("Binlog_Ignore_DB") or "").split(",")))
    for db in sorted(databases):
        if db in never or (only and db not in only):
            name = "binlog_ignore_db" if db in never else "binlog_do_db"
            yield error(
                f"source: {name}",
                f"the server's {name} keeps changes of database {db!r} out of the binlog",
                f"Remove {name} from the server's configuration, or exclude the database's tables (tables.exclude).",
            )
    for name, filtered in (("binlog_do_db", only), ("binlog_ignore_db", never)):
        if not filtered:
            continue
        sessions = f"sessions whose default database is {' or '.join(sorted(filtered))}"
        if name == "binlog_do_db":
            without = " or that have no default database" if info.flavor == "mariadb" else ""
            sessions = f"sessions whose default database is not {' or '.join(sorted(filtered))}{without}"
        message = (
            f"the server has {name}={','.join(sorted(filtered))}, so that its binlog lacks the statements of "
            f"{sessions}: a TRUNCATE or ALTER of a captured table there would go unnoticed"
        )
        remedy = f"Remove {name} from the server's configuration."
        if source.accept_binlog_filters:
            yield warning(f"source: {name}", message, remedy)
        else:
            yield error(
                f"source: {name}",
                message,
                f"{remedy} Or set source.accept_binlog_filters: true, if no such session changes captured tables.",
            )


def _relay(conn: Connection, values: Mapping[str, str]) -> Iterator[Finding]:
    """Checks of a replica: that it logs what it applies (otherwise its binlog has direct writes only), and that capture
    can tell how far it is behind."""
    rows = query(conn, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_running', 'Slave_running')")
    runs = any(str(row["Value"]) not in ("0", "OFF") for row in rows)
    if runs and not _logs_what_it_applies(values):
        yield error(
            "source: log_slave_updates",
            "the server is a replica and does not log the changes that it applies",
            "Start it with log_slave_updates=ON, or capture its source.",
        )
    try:
        lag_s = behind_s(conn)
    except SourceRefusedError as refused:
        if runs:
            yield warning(
                "source: replication",
                f"the server is a replica, and the account may not see how far it is behind ({refused.message}): "
                "intervals count as complete while changes of their time are still on their way to it",
                f"GRANT SLAVE MONITOR ON *.* TO {account_of(conn)}",
            )
        return
    if lag_s is None:
        return
    if not isinf(lag_s):
        yield ok("source: replication", f"the server is a replica, {lag_s:g} s behind")
    else:
        yield warning(
            "source: replication",
            "the server is a read-only replica that does not replicate now: no interval becomes complete until it does",
            "Look at SHOW REPLICA STATUS (SHOW ALL SLAVES STATUS on MariaDB), or capture its source.",
        )
