"""Stage 2, capture: reads a source like a replica and appends its transactions to the store.

Capture imports ``source``, ``binlog``, ``store``, ``meta``, ``batches`` (for retention) and ``copies``; it is imported
by the commands and by ``cdc.airflow``. It never decodes a row. It promises one writer per store, that no event which
could change a captured table is skipped, and that a position is recorded only after its events are durable.

The modules in the order of the data:

- :mod:`~cdc.capture.loop` is the process: it connects, reads, and reconnects (:mod:`~cdc.capture.reconnect`).
- :mod:`~cdc.capture.start` finds the position to read from. :mod:`~cdc.capture.proof` proves that the source still has
  the store's history, for which :mod:`~cdc.capture.reread` reads the last transaction again.
- :mod:`~cdc.capture.session` reads one connection and appends to the store.
  :mod:`~cdc.capture.statement_filter` decides about statements, and :mod:`~cdc.capture.schema_history` writes the
  tables' schemas beside the segments; without a server, :mod:`~cdc.capture.tracked_schemas` follows them.
- :mod:`~cdc.capture.watermark` tracks the time up to which the store is complete.
- :mod:`~cdc.capture.memory_room` lets capture wait while the buffer of a store in memory is full.
- :mod:`~cdc.capture.replication` makes capture the master of a standby.
"""

from cdc.capture.loop import Capture, CaptureProgress
from cdc.capture.session import CaptureCounters

__all__ = ["Capture", "CaptureCounters", "CaptureProgress"]
