"""The catalogue of metrics: name, kind, labels and meaning of each, and what Debezium and Canal call it.

``docs/reference/metrics.md`` is made from it. A metric that is not in the catalogue cannot be exported, and a test
fails for one that is never exported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DESTINATION = "destination"
"""The label that every metric has: the name of the configuration file."""


@dataclass(frozen=True)
class Metric:
    """A metric. Its name is an interface and never changes its meaning."""

    name: str
    """With ``_total`` if it is a counter."""
    meaning: str
    kind: Literal["gauge", "counter"] = "gauge"
    labels: tuple[str, ...] = ()
    """Beside the destination."""
    debezium: str = ""
    """The attribute of Debezium's MBean that tells about the same."""
    canal: str = ""
    """The metric of Canal that tells about the same."""

    @property
    def all_labels(self) -> tuple[str, ...]:
        return (DESTINATION, *self.labels)


def _counter(name: str, meaning: str, *, debezium: str = "", canal: str = "") -> Metric:
    return Metric(name, meaning, "counter", debezium=debezium, canal=canal)


INFO = Metric(
    "towpath_info", "Always 1; the label names the version of Towpath.", labels=("version",), canal="canal_instance"
)
CONNECTED = Metric(
    "towpath_capture_connected", "1 while the capture is connected to the source, else 0.", debezium="Connected"
)
LAG = Metric(
    "towpath_capture_lag_seconds",
    "How far the store is behind the source, by the source's clock. It grows while the connection is lost. A capture "
    "that is level has 1 to 3 s: the store counts as complete up to one second before the last question for the clock.",
    debezium="MilliSecondsBehindSource",
    canal="canal_instance_traffic_delay",
)
COMPLETE_UNTIL = Metric(
    "towpath_capture_complete_until_timestamp_seconds",
    "The source's time up to which the store is known to be complete, as Unix time.",
)
LAST_COMMIT = Metric(
    "towpath_capture_last_commit_timestamp_seconds",
    "Commit time of the newest transaction that this capture stored, as Unix time.",
    debezium="MilliSecondsSinceLastEvent",
)
RECEIVED_BYTES = _counter(
    "towpath_capture_received_bytes_total",
    "Bytes of the binlog that were received from the source.",
    canal="canal_instance_received_binlog_bytes",
)
STORED_BYTES = _counter("towpath_capture_stored_bytes_total", "Bytes that were appended to the store.")
TRANSACTIONS = _counter(
    "towpath_capture_transactions_total",
    "Transactions that were stored.",
    debezium="NumberOfCommittedTransactions",
    canal="canal_instance_transactions",
)
EVENTS = _counter(
    "towpath_capture_events_total",
    "Binlog events of the stored transactions.",
    debezium="TotalNumberOfEventsSeen",
    canal="canal_instance_put_rows",
)
RECONNECTS = _counter(
    "towpath_capture_reconnects_total",
    "Connections to the source that were lost, after each of which the capture connects again.",
    debezium="NumberOfDisconnects",
)
POSITION_FILE = Metric(
    "towpath_capture_position_file_number",
    "Number of the binlog file up to which the source was read: 7 for `binlog.000007`.",
    debezium="BinlogFilename",
)
POSITION_BYTES = Metric(
    "towpath_capture_position_bytes",
    "Offset in that file up to which the source was read.",
    debezium="BinlogPosition",
)
POSITION_SEQ = Metric(
    "towpath_store_last_seq", "The newest seq in the store.", canal="canal_instance_store_produce_seq"
)
UNREAD_BYTES = Metric("towpath_source_unread_bytes", "Bytes of the source's binlog that the capture has not read.")
PURGE_AT = Metric(
    "towpath_source_purge_timestamp_seconds",
    "When the source may purge the binlog file that the capture reads, by its age, as Unix time. Missing while that "
    "file is the newest one, or if the source purges none by age.",
)
PURGE_LEFT = Metric(
    "towpath_source_purge_margin_ratio",
    "Share of the source's retention, by time or by size, that is left before it purges what the capture has not read; "
    "1 while the capture reads the newest file.",
)
FAILOVERS = _counter(
    "towpath_source_failovers_total",
    "Failovers of the source in the life of the store: how often the capture has moved to another server.",
)
LAST_FAILOVER = Metric(
    "towpath_source_last_failover_timestamp_seconds",
    "When the capture last moved to another server, as Unix time. Missing if it never did.",
)
STORE_TRANSACTIONS = Metric("towpath_store_transactions", "Transactions in the store.")
STORE_BYTES = Metric(
    "towpath_store_bytes", "Bytes of the transactions in the store.", canal="canal_instance_store_produce_mem"
)
DISK_TOTAL = Metric("towpath_store_disk_total_bytes", "Size of the store's disk that this user can use.")
DISK_FREE = Metric(
    "towpath_store_disk_free_bytes", "Free bytes on the store's disk.", debezium="QueueRemainingCapacity"
)
DISK_LIMIT = Metric(
    "towpath_store_disk_stop_ratio",
    "The used share of the disk at which capture stops to write: `store.disk.stop_ratio`.",
)
ARCHIVED_SEQ = Metric("towpath_archive_seq", "The seq up to which the store's segments are in its archive; 0: none is.")
ARCHIVE_BYTES = Metric("towpath_archive_bytes", "Bytes of the segments and indexes in the archive.")
ARCHIVE_WAITING = Metric("towpath_archive_waiting_segments", "Finished segments that are not in the archive yet.")
ARCHIVE_WAITING_BYTES = Metric("towpath_archive_waiting_bytes", "Their bytes, with those of their indexes.")
ARCHIVE_LAG = Metric(
    "towpath_archive_lag_seconds",
    "Age of the oldest of them, since its last transaction was stored; 0 if there is none.",
)
ARCHIVE_FAILING = Metric(
    "towpath_archive_failing_seconds",
    "For how long every try to copy to the archive has failed; 0 if the last one succeeded.",
)
SUBSCRIPTION = ("subscription",)
CURSOR_LAG = Metric(
    "towpath_subscription_lag_seconds",
    "Age of the oldest transaction that the subscription has not acked, by its commit time; 0 if it has acked all. It "
    "grows while nothing is acked.",
    labels=SUBSCRIPTION,
    canal="canal_instance_ack_delay",
)
BEHIND_TRANSACTIONS = Metric(
    "towpath_subscription_behind_transactions", "Stored transactions that are not acked.", labels=SUBSCRIPTION
)
BEHIND_BYTES = Metric("towpath_subscription_behind_bytes", "Bytes of these transactions.", labels=SUBSCRIPTION)
ACKED_SEQ = Metric(
    "towpath_subscription_acked_seq",
    "The seq up to which everything is acked.",
    labels=SUBSCRIPTION,
    canal="canal_instance_store_consume_seq",
)
OUTSTANDING = Metric(
    "towpath_subscription_outstanding_batches", "Batches that were fetched and not acked yet.", labels=SUBSCRIPTION
)
EXPIRED = Metric(
    "towpath_subscription_expired_batches",
    "Outstanding batches whose lease has expired: their owner died, or lost the meta.",
    labels=SUBSCRIPTION,
)
PARKED = Metric(
    "towpath_table_parked", "1 for each table that apply leaves out; see the page about such tables.",
    labels=("subscription", "table"),
)  # fmt: skip
READABLE = Metric(
    "towpath_scrape_success",
    "1 if the part (`store`, `disk`, `archive`, `subscriptions`) could be read for this answer, else 0.",
    labels=("part",),
)  # fmt: skip

ALARMS = Metric("towpath_alarms", "Alarms that are raised, by name.", labels=("alarm",))
ALARM_MESSAGES = Metric(
    "towpath_alarm_messages_total",
    "Tries to tell a handler (`webhook`, `mail`, `command`) of an alarm, by outcome: `sent` or `failed`.",
    "counter",
    labels=("handler", "outcome"),
)

CAPTURE = (
    INFO, CONNECTED, LAG, COMPLETE_UNTIL, LAST_COMMIT, RECEIVED_BYTES, STORED_BYTES, TRANSACTIONS, EVENTS, RECONNECTS,
    POSITION_FILE, POSITION_BYTES, UNREAD_BYTES, PURGE_AT, PURGE_LEFT, FAILOVERS, LAST_FAILOVER, POSITION_SEQ,
    STORE_TRANSACTIONS, STORE_BYTES, DISK_TOTAL, DISK_FREE, DISK_LIMIT,
    ARCHIVED_SEQ, ARCHIVE_BYTES, ARCHIVE_WAITING, ARCHIVE_WAITING_BYTES, ARCHIVE_LAG, ARCHIVE_FAILING,
    CURSOR_LAG, BEHIND_TRANSACTIONS, BEHIND_BYTES, ACKED_SEQ, OUTSTANDING, EXPIRED, PARKED, READABLE,
    ALARMS, ALARM_MESSAGES,
)  # fmt: skip
"""Metrics that a capture serves."""

RUN_SUCCESS = Metric("towpath_run_success", "1 if the last run succeeded, 0 if it failed.")
RUN_END = Metric("towpath_run_end_timestamp_seconds", "When the last run ended, as Unix time.")
RUN_LAST_SUCCESS = Metric(
    "towpath_run_last_success_timestamp_seconds", "When a run last ended with success, as Unix time."
)
RUN_SECONDS = Metric("towpath_run_seconds", "Duration of the last run.")
RUN_BATCHES = Metric("towpath_run_batches", "Batches that the last run merged.", canal="canal_instance_client_packets")
RUN_TRANSACTIONS = Metric("towpath_run_transactions", "Transactions of these batches.")
RUN_ROW_EVENTS = Metric("towpath_run_row_events", "Row events of these batches.", canal="canal_instance_ack_rows")
RUN_BYTES = Metric("towpath_run_bytes", "Bytes of these batches.", canal="canal_instance_client_bytes")
TABLE = ("table",)
TABLE_CHANGES = Metric(
    "towpath_run_table_changes", "Rows that the run inserted, updated and deleted in the Delta table.", labels=TABLE
)
TABLE_INSERTED = Metric(
    "towpath_run_table_inserted", "Rows that it inserted.", labels=TABLE, debezium="TotalNumberOfCreateEventsSeen"
)
TABLE_UPDATED = Metric(
    "towpath_run_table_updated", "Rows that it updated.", labels=TABLE, debezium="TotalNumberOfUpdateEventsSeen"
)
TABLE_DELETED = Metric(
    "towpath_run_table_deleted", "Rows that it deleted.", labels=TABLE, debezium="TotalNumberOfDeleteEventsSeen"
)
TABLE_SKIPPED = Metric(
    "towpath_run_table_skipped", "Changes that the table had already.", labels=TABLE, debezium="NumberOfSkippedEvents"
)
TABLE_NULL_DATES = Metric("towpath_run_table_null_dates", "Zero and impossible dates that became null.", labels=TABLE)
TABLE_SECONDS = Metric("towpath_run_table_seconds", "Time that the run spent on the table.", labels=TABLE)
TABLE_FILES = Metric("towpath_run_table_files", "Data files that its commits added.", labels=TABLE)
TABLE_PARKED = Metric("towpath_run_table_parked", "1 if the run left the table out, else 0.", labels=TABLE)

RUN = (
    RUN_SUCCESS, RUN_END, RUN_LAST_SUCCESS, RUN_SECONDS, RUN_BATCHES, RUN_TRANSACTIONS, RUN_ROW_EVENTS, RUN_BYTES,
    TABLE_CHANGES, TABLE_INSERTED, TABLE_UPDATED, TABLE_DELETED, TABLE_SKIPPED, TABLE_NULL_DATES, TABLE_SECONDS,
    TABLE_FILES, TABLE_PARKED,
)  # fmt: skip
"""Metrics that a run pushes. The tables are those of the last run that had any."""

SERVER_REQUESTS = Metric(
    "towpath_server_requests_total",
    "Requests that were answered, by operation and outcome: `ok`, `refused` (a wrong token or version), the type of "
    "the error, or `failed`.",
    "counter",
    labels=("operation", "outcome"),
)
SERVER_BYTES = _counter("towpath_server_sent_bytes_total", "Bytes of segments and table definitions that were sent.")
SERVER_LOCKS = Metric("towpath_server_locks", "Locks that clients hold.")
SERVER_STATE = Metric(
    "towpath_server_instance_state",
    "1 for the state of the instance: `starting`, `running`, `waiting` (nobody subscribes, so nothing is captured), "
    "`stopped` (by an operator), `standby` (another server has it), `failed` or `unserved` (its "
    "configuration gives the server nothing to do); 0 for the other states.",
    labels=("state",),
)
SERVER_RESTARTS = _counter(
    "towpath_server_capture_restarts_total", "How often the server has started the destination's capture again."
)
SERVER_LEADS = Metric(
    "towpath_server_leads", "Whether this server leads the destination (1) or another one may (0): `server.ha`."
)
SERVER_EPOCH = Metric("towpath_server_leadership_epoch", "The epoch of this server's leadership; 0 while it has none.")
SERVER_TAKEOVERS = _counter(
    "towpath_server_takeovers_total", "How often this server has begun to lead the destination."
)

SERVER = (
    SERVER_REQUESTS, SERVER_BYTES, SERVER_LOCKS, SERVER_STATE, SERVER_RESTARTS, SERVER_LEADS, SERVER_EPOCH,
    SERVER_TAKEOVERS, ALARMS, ALARM_MESSAGES,
)  # fmt: skip
"""Metrics that `cdc server` serves."""

PUSH_MESSAGES = _counter("towpath_push_messages_total", "Messages that the brokers have acknowledged.")
PUSH_BYTES = _counter("towpath_push_bytes_total", "Bytes of the keys and values of these messages.")
PUSH_ROWS = _counter("towpath_push_rows_total", "Changed rows in these messages.")
PUSH_BATCHES = _counter("towpath_push_batches_total", "Batches that were sent and acked.")
PUSH_ERRORS = _counter("towpath_push_errors_total", "Failures, after each of which the batch was rolled back.")
PUSH_FAILING = Metric("towpath_push_failing", "1 if the last try to send a batch has failed, else 0.")
PUSH_LAG = Metric(
    "towpath_push_lag_seconds",
    "Age of the oldest transaction whose messages are not acknowledged, by its commit time; 0 if all are.",
)
PUSH_ACKED_SEQ = Metric("towpath_push_acked_seq", "The seq up to which everything is acknowledged and acked.")
PUSH = (
    INFO, PUSH_MESSAGES, PUSH_BYTES, PUSH_ROWS, PUSH_BATCHES, PUSH_ERRORS, PUSH_FAILING, PUSH_LAG, PUSH_ACKED_SEQ,
)  # fmt: skip
"""Metrics that `cdc push` serves."""
