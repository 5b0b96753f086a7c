"""What the statements of a migration will do to the Delta tables, before anybody executes them.

``script`` splits a file into statements, ``planned_lake`` stands in for the tables, and ``planner`` runs the code that
apply runs (:class:`~cdc.lake.apply.schema.evolve.Evolution`) on them, so that its verdicts are those of apply.
``trial`` has a server execute the statements on empty copies of the tables, if one is named. Imported by ``cdc plan``.
Promises that nothing is written: neither to the store and the meta, nor to a table of the source or the lake.
"""
