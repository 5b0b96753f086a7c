"""The Delta side of a destination: runs, merges, jobs on tables, and verification.

:mod:`.runs` takes batch after batch; :mod:`.pipeline` has the steps, in this process, under spark-submit or over Spark
Connect; ``jobs`` are those on single tables; ``verify`` compares commits, store, source and lake. The way of a batch
goes upwards: ``runtime`` has Spark's sessions, ``rows`` the changes as DataFrames, ``delta`` the tables, and ``apply``
brings both together; ``migration`` foresees what apply will do. :mod:`.as_of` and :mod:`.store_changes` read for users;
:mod:`.history` has the changes of one row, :mod:`.intervals` the complete hours, :mod:`.groups` the destinations that
write one set of tables. Imported by the commands, Airflow and ``watch``. Promises DataFrames and SQL only, so that the
same functions work in each of the three places; and that each change is applied exactly once, however often a batch is
repeated.
"""
