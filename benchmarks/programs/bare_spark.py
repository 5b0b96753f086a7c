"""A bare Spark process, with Delta and nothing of Towpath: the other side of the lines of cold processes.

    python bare_spark.py CORES JARS query DELTA     counts the rows of a Delta table
    python bare_spark.py CORES JARS write PARQUET DELTA     writes Parquet files into a new Delta table
    python bare_spark.py CORES JARS tables FOLDER COUNT     creates Delta tables, with one statement that fills each

JARS are Delta's, separated by commas, so that nothing is resolved.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

cores, jars, work, source, *into = sys.argv[1:]
spark = (
    SparkSession.builder.master(f"local[{cores}]")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .getOrCreate()
)
if work == "query":
    print(spark.read.format("delta").load(source).count())
elif work == "tables":
    columns = "id BIGINT, customer INT, status STRING, total DECIMAL(12, 2), items INT, note STRING, code STRING"
    for number in range(int(into[0])):
        table = f"delta.`{source}/{number}`"
        spark.sql(f"CREATE TABLE {table} ({columns}) USING delta")
        spark.sql(f"INSERT INTO {table} SELECT id, 1, 'paid', 1.5, 1, 'note', NULL FROM range(3)")
else:
    spark.read.parquet(source).write.format("delta").save(into[0])
spark.stop()
