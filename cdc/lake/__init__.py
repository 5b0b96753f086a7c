"""The Delta side of a destination, as far as it needs no Spark: runs, jobs, and what they prove.

:mod:`.runs` takes batch after batch; :mod:`.pipeline` has the steps, whose merges start ``spark_jobs``; ``jobs`` are
those on single tables; ``verify`` compares commits, store, source and lake. :mod:`.history` has the changes of one row,
:mod:`.intervals` the complete hours, :mod:`.groups` the destinations that write one set of tables. Imported by the
commands, Airflow and what operators watch.
"""
