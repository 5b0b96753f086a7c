"""Reads the statements in a binary log. ``statements`` tells their kind and tables, and for DDL the changes that
``changes`` defines. ``alter_table``, ``create_table``, ``columns`` and ``types`` read the parts of a text, ``tokens``
and ``literals`` its words. ``track`` follows a table's definition through changes, and ``conversions`` says whether
old rows keep their values.

:mod:`.schemas` has the tables' definitions as information_schema gives them. Imported by ``binlog``, ``capture``, the
store's reader and the Spark jobs; imports ``cdc.base`` and ``cdc.disk`` alone. It promises to be conservative: a
statement that is not certainly harmless is never reported as harmless, and no text raises an error when it is read.
Only ``track`` raises, for changes that contradict a definition.
"""
