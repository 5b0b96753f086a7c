"""Texts in the servers' character sets: ``tables`` tells which character set a collation id means and which characters
it has, ``convert`` makes UTF-8 of texts, by the compiled loops in ``kernels``.

Imported by ``cdc.decode``, the checks of source tables and the reference decoder of the tests; imports
``cdc.kernels.jit`` and pyarrow. It promises the characters that the server itself sends for the same bytes to a client
in utf8mb4.
"""
