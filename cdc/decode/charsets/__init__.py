"""Texts in the servers' character sets: which one a collation id means, and UTF-8 made of it.

Imported by ``cdc.decode`` and the reference decoder's tests; imports ``cdc.binlog.jit`` and pyarrow. It promises the
characters that the server itself sends for the same bytes to a client in utf8mb4.
"""
