"""Plain Spark programs that apply a batch to Delta tables.

``apply_batch`` is the entry of a driver, ``worker_daemon`` that of Python workers. Below them ``apply`` uses ``delta``,
``delta`` uses ``source``, and all use ``runtime``; never the other way round. May import ``cdc`` (configuration,
manifests, decode, the batch service), pyspark and deltalake; never Airflow. Imported by ``cdc.lake.pipeline`` and a few
commands, and run by spark-submit. Promises: DataFrames and SQL only, so that the same functions work in this process,
under spark-submit and over Spark Connect; and each change is applied exactly once, however often a batch is repeated.
"""
