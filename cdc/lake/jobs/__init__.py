"""Jobs beside apply: snapshots, replays and the catch-up of parked tables, and maintenance of the store.

A job on a table parks it, so that apply leaves it out. It works on the table alone, brings it to the end of the
outstanding batches, and lets apply take it again. :mod:`cdc.lake.pipeline` calls the jobs; they call ``apply`` and
``delta`` for everything that touches Delta. They promise that a kill at any moment leaves the table parked with all
that the next job needs, and that no change is lost or applied twice.
"""
