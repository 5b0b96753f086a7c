"""Counts what goes through an event store, for :class:`cdc.event_store.transaction.StoreMetrics`."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cdc.event_store.ring import NewTransaction, RingMark
from cdc.event_store.transaction import StoreMetrics, Transaction


class StoreMeter:
    """Counts transactions between two marks. Not thread-safe: the store calls it under its own lock.

    Source: Canal's ``CanalStoreMetrics``: times and memory of put, get and ack, execution time by table.
    """

    def __init__(self) -> None:
        self._put = self._got = self._acked = (0, 0)
        self._put_rows = 0
        self._put_delay_s = self._get_delay_s = self._ack_delay_s = 0.0
        self._table_rows: dict[str, int] = {}
        self._table_delay_s: dict[str, float] = {}

    def put(self, new: Sequence[NewTransaction], before: RingMark) -> None:
        """Counts a put of these transactions, at least one, after ``before``."""
        now_us = time.time_ns() // 1000
        after, _, last_time_us = new[-1]
        self._put = _add(self._put, before, after)
        self._put_rows += after.row_events - before.row_events
        self._put_delay_s = _delay_s(last_time_us, now_us)
        rows = before.row_events
        for mark, transaction, commit_time_us in new:
            if transaction.tables:
                table = transaction.tables[0]
                self._table_rows[table] = self._table_rows.get(table, 0) + mark.row_events - rows
                self._table_delay_s[table] = _delay_s(commit_time_us, now_us)
            rows = mark.row_events

    def got(self, last: Transaction, before: RingMark, end: RingMark) -> None:
        """Counts a get. A transaction that is returned twice counts twice."""
        self._got = _add(self._got, before, end)
        self._get_delay_s = _delay_s(last.commit_time_us, time.time_ns() // 1000)

    def acked(self, last: Transaction, before: RingMark, end: RingMark) -> None:
        """Counts an ack."""
        self._acked = _add(self._acked, before, end)
        self._ack_delay_s = _delay_s(last.commit_time_us, time.time_ns() // 1000)

    def metrics(self, ack: RingMark, put: RingMark) -> StoreMetrics:
        """Returns the metrics of a store whose sequences are at these marks."""
        return StoreMetrics(
            put_transactions=self._put[0],
            put_rows=self._put_rows,
            put_bytes=self._put[1],
            get_transactions=self._got[0],
            get_bytes=self._got[1],
            ack_transactions=self._acked[0],
            ack_bytes=self._acked[1],
            held_events=put.events - ack.events,
            held_bytes=put.bytes - ack.bytes,
            put_delay_s=self._put_delay_s,
            get_delay_s=self._get_delay_s,
            ack_delay_s=self._ack_delay_s,
            table_rows=dict(self._table_rows),
            table_delay_s=dict(self._table_delay_s),
        )


def _add(total: tuple[int, int], before: RingMark, after: RingMark) -> tuple[int, int]:
    return total[0] + after.number - before.number, total[1] + after.bytes - before.bytes


def _delay_s(commit_time_us: int, now_us: int) -> float:
    """Returns the delay, never negative: the source's clock may be ahead of this machine's."""
    return max(0, now_us - commit_time_us) / 1e6
