"""The changes of a server in a Python program: what :func:`cdc.stream` returns.

``stream.py`` holds it together. A capture runs in a thread (``capture_thread.py``) and appends to a log
(``capture_log.py``) that puts whole transactions into an event store (:mod:`cdc.event_store`): Canal's ring in memory
for each reader, or a log on a disk. A reader (``reader.py``) takes them from its store, decodes many at once
(``decoder.py``, ``values.py``), hands them out (``changes.py``), and keeps its cursor (``cursors.py``).
``settings.py`` and ``open.py`` check arguments.

Imported by programs of users, through :mod:`cdc`.
"""

from cdc.streaming.changes import Change, Changes, Statement, Transaction
from cdc.streaming.reader import Reader
from cdc.streaming.settings import FileStore, MemoryRing
from cdc.streaming.stream import Stream

__all__ = ["Change", "Changes", "FileStore", "MemoryRing", "Reader", "Statement", "Stream", "Transaction"]
