"""Compiled kernels that turn Canal's entries into messages: flat ones, packets, Debezium's envelopes.

``messages`` is the loop over entries, ``flat``, ``raw`` and ``envelope`` write one format each, ``rows`` reads entries,
and ``texts`` and ``words`` write JSON. They import no package but :mod:`cdc.binlog`, :mod:`cdc.canal` and
:mod:`cdc.decode`.
"""
