"""Delta tables: reads their logs, creates and alters them, and proves that none was replaced or restored.

``log`` needs no Spark and is the only reader of ``_delta_log``; commands of ``cdc`` may import it. ``tables`` creates
tables and adds columns, ``adoption`` makes Parquet files the content of a table, with statistics by ``stats``,
``local_tables`` changes tables without a job of Spark, ``row_replacement`` by such jobs, in Delta's ``transaction``;
``proof`` runs before a merge, ``sql`` quotes names and texts. Imported by ``apply`` and the jobs. Promises that no
table of another destination, mode or source is written.
"""
