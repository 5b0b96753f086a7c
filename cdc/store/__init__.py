"""The durable store between capture and the batches: a relay log on disk.

Five layers, each of which imports only those below it (a contract in ``pyproject.toml``):

``retention``  removes segments that no subscriber needs
``writer``     appends, flushes and makes visible; one for each store
``recovery``   verifies and repairs a store before a writer goes on
``reader``     finds batches, times and stats; any number, in any process
``formats``    the files, their names and layouts

Imported by capture, batches, decode, copies, the event store, the commands and Spark's jobs; imports the binlog
format. It knows neither MySQL's network side nor the meta, Airflow or Spark.

It promises that a transaction becomes visible only when its bytes are on the disk, that a part of one is never visible,
and that sequence numbers rise.
"""
