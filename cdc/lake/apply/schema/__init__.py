"""Schema evolution: brings a Delta table to the columns and rows that a DDL statement gives its source table.

``statements`` reads the statements of a batch, ``tracked`` knows each table's source schema as of its applied position,
``lineage`` follows columns through a statement, ``plan`` decides by the policies, ``columns`` finds the next ALTER,
``content`` writes the one statement that carries the position, and ``evolve`` runs all of it. Imported by
``apply.ddl`` and ``apply_batch``. Promises that a repeated, killed or outdated run leaves the same table.
"""
