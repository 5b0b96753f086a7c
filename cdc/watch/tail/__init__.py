"""The changes of a destination as they come, for ``cdc tail``.

``follow.py`` finds the transactions that the store has got, on this machine or at a server, and opens them;
``changes.py`` decodes their rows, table by table, and brings the rows of all tables back into the order in which they
happened; ``lines.py`` makes a line of each, as JSON or for people, with ``texts.py``. Rows are handled as Arrow arrays
throughout. Nothing here changes the store or the meta: no cursor moves.
"""
