"""Random tables, rows and changes, for comparing decoders: one seed makes one table, on each server the same again.

:func:`ask` finds out which types and character sets a server has; :func:`random_table` makes a table of them.
"""

from tests.support.random_tables.facts import Facts, ask
from tests.support.random_tables.table import RandomTable, random_table

__all__ = ["Facts", "RandomTable", "ask", "random_table"]
