"""Stage 1, the MySQL and MariaDB side: connections, facts about the server, the preflight, table schemas, dumps.

May be imported by ``capture``, ``lake``, the commands and ``cdc.airflow``; ``store``, ``meta`` and ``decode`` do not
import it. It promises that a server which cannot be captured without loss is refused before anything is read, with the
setting to change, and that it never writes to the source.

- :mod:`~cdc.source.connection` connects, and translates errors; :mod:`~cdc.source.driver` has the names of PyMySQL
  without a promise; :mod:`~cdc.source.server` asks for version, identity, binlog files, positions and clock.
- :mod:`~cdc.source.preflight` decides whether a server can be captured, with the checks of
  :mod:`~cdc.source.privileges` and :mod:`~cdc.source.table_checks`; they return :mod:`~cdc.source.findings`.
- :mod:`~cdc.source.schemas` reads the tables' columns.
- :mod:`~cdc.source.dump` is the replication protocol; :mod:`~cdc.source.history` answers questions about binlog files
  and GTIDs.
- :mod:`~cdc.source.folder` is a folder of binlog files in place of a server, :mod:`~cdc.source.folder_dump` reads it as
  a server's dump, and :mod:`~cdc.source.folder_checks` is its preflight.
- :mod:`~cdc.source.foreign_keys` says which foreign keys apply can follow, and how the server compares their values.
- ``snapshot`` reads whole tables. The others do not import it, because capture imports them and never decodes a row.
"""
