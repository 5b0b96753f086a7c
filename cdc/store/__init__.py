"""Stage 3, the durable store between capture and the batches: a relay log on disk.

``relaylog`` is the one writer, ``recovery`` what it does before it goes on, ``reader`` (with ``picker`` and
``filters``) is for everybody else, ``retention`` removes, ``standby`` copies to another machine, ``staged`` to where
executors can read. ``contract`` is what every store promises; ``file_store`` keeps it over the relay log, ``ring`` in
memory; ``channel`` is for programs that think in Flume's transactions. ``layout`` is the folder, ``state`` and
``clock`` its small files. Imported by ``capture``, ``batches``, ``decode`` and the Spark jobs; imports ``binlog``. It
knows neither MySQL's network side nor Airflow nor Spark.

It promises that a transaction becomes visible only when its bytes are on the disk, that it is never half there, and
that sequence numbers rise.
"""
