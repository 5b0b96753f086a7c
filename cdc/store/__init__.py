"""Stage 3, the durable store between capture and the batches: a relay log on disk.

``relaylog`` is the one writer, ``reader`` is for everybody else; ``segment``, ``index`` and ``entry`` are the format
(``docs/formats``), ``recovery`` what happens before a writer goes on, ``layout`` the folder. Imported by ``capture``,
``batches``, ``decode`` and the Spark jobs; imports ``binlog``. It knows neither MySQL's network side nor Airflow nor
Spark.

It promises that a transaction becomes visible only when its bytes are on the disk, that it is never half there, and
that sequence numbers rise.
"""
