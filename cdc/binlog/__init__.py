"""The binary log's format itself: event headers, table maps, statements, compiled scanners.

Imported by ``source``, ``capture``, ``store`` and ``decode``; imports nothing of ours but errors, positions and the
index entry. It promises a closed world: every event type is decoded, skipped for a stated reason, or refused by name.
"""
