"""Jobs beside apply: snapshots, replays and the catch-up of parked tables, and maintenance of the store.

A job on a table parks it, so that apply leaves it out. It works on the table alone, brings it to the end of the
outstanding batches, and lets apply take it again::

    job                   a table that a job has parked
    snapshot              takes snapshots; ``read_snapshot`` reads them through Spark
    load                  loads a snapshot into its table
    columns               merges columns that a snapshot read again; ``read_columns`` finds their values
    replay                builds tables from the store; ``rebuilt`` commits the result
    part                  loads or replays a part of a table; ``table_part`` reads which one users name
    generations           the generations of a table, which loads and replays begin
    shared_rows           replaces a destination's rows of a shared table
    catch_up, retry       apply the changes of one table, and unpark it
    parked                the tables that are parked, each with its way back
    plan                  estimates a job before it runs
    maintain              cleans the store; ``maintain_tables`` compacts Delta tables
    values, merge         jobs and merges as values that are sent to a driver; ``results`` are those of jobs

:mod:`cdc.lake.pipeline` calls the jobs; they call ``apply`` and ``delta`` for everything that touches Delta. They
promise that a kill at any moment leaves the table parked with all that the next job needs, and that no change is lost
or applied twice.
"""
