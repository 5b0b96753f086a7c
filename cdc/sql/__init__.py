"""Reads the statements in a binary log: ``tokens`` splits their text, ``statements`` tells their kind and tables,
``changes`` has what a DDL statement may do to a table, and ``alter_table`` reads the clauses of ALTER TABLE.

Imported by ``binlog``, ``capture``, the store's reader and the Spark jobs; imports ``cdc.schemas`` and ``cdc.errors``
alone. It promises to be conservative: a statement that is not certainly harmless is never reported as harmless, and no
text raises an error.
"""
