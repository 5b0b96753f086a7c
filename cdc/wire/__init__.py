"""The parts that both ends of ``cdc server`` share: the protocol's names, errors as documents, and a connection.

Imports :mod:`cdc.binlog` and :mod:`cdc.base` alone, because the store's reader, which executors use, fetches bytes
with it. The format is in ``docs/formats/server.md``. httpx is imported only where a connection is opened.
"""
