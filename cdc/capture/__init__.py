"""Stage 2, capture: reads a source like a replica and appends its transactions to the store.

``loop`` is the process, ``session`` one connection, ``judge`` what becomes of statements, ``start`` where to begin,
``clock`` up to when the store is complete. It imports ``source``, ``binlog``, ``store`` and ``meta``; it never decodes
a row. It promises one writer for each store, nothing skipped that could change a captured table, and a position that
moves only behind durable events.
"""

from cdc.capture.loop import Capture, Progress
from cdc.capture.session import Counters

__all__ = ["Capture", "Counters", "Progress"]
