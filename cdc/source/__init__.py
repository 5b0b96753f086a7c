"""Stage 1, MySQL's side: connections, what the server says of itself, the preflight, table schemas, the dump stream.

May be imported by ``capture``, the commands and ``cdc.airflow``; ``store``, ``meta`` and ``decode`` know nothing of it.
It promises that a server which cannot be captured without loss is refused with the setting to change, before
anything is read; and that nothing here ever writes to the source.
"""
