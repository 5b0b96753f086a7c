"""Turns the changes of a batch into one statement for each table.

``prepare`` looks at the whole batch before Spark starts, ``ddl`` handles DDL batches, ``small_batches`` merges few
changes by delta-rs if the configuration says so, and ``merge`` runs the statement of one table by Spark, with ``rows``
(DataFrames), ``statements`` (SQL) and ``large_values``. Both read by ``table_changes``. Imported by ``apply_batch`` and
``cdc.lake.pipeline``. Promises that a table's rows and its applied position are committed together or not at all.
"""
