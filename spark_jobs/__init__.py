"""Plain Spark programs: apply a batch to Delta tables, and what that needs.

May import: ``cdc`` (configuration, manifests, decode, the batch service), pyspark, deltalake; never Airflow. Imported
by ``cdc.pipeline`` and run by spark-submit. Promises: DataFrames and SQL only, so that the same functions work in this
process, under spark-submit and over Spark Connect; and each change is applied exactly once, whoever repeats a batch.
"""
