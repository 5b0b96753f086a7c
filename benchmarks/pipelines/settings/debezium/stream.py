"""Merges the last change of each key in each micro-batch into Delta."""

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, max_by

COLUMNS = (
    "id BIGINT, customer BIGINT, status STRING, total DECIMAL(12,2), items SMALLINT, note STRING, code STRING, "
    "created TIMESTAMP, changed TIMESTAMP, flag TINYINT, score DOUBLE"
)
names = [column.split()[0] for column in COLUMNS.split(", ")]
spark = (
    SparkSession.Builder()
    .master("local[$cores]")
    .config("spark.jars", "$spark_jars")
    .config("spark.driver.memory", "3g")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "$cores")
    .config("spark.databricks.delta.snapshotPartitions", "$cores")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`$folder/lake` ({COLUMNS}) USING delta")
target = DeltaTable.forPath(spark, "$folder/lake")


def merge(batch: DataFrame, batch_id: int) -> None:
    rows = batch.select(from_json(col("value").cast("string"), f"{COLUMNS}, __deleted STRING").alias("row"), "offset")
    last = rows.groupBy("row.id").agg(max_by("row", "offset").alias("row")).select("row.*")
    (
        target.alias("t")
        .merge(last.alias("s"), "t.id = s.id")
        .whenMatchedDelete("s.__deleted = 'true'")
        .whenMatchedUpdate(set={name: f"s.{name}" for name in names})
        .whenNotMatchedInsert("s.__deleted = 'false'", values={name: f"s.{name}" for name in names})
        .execute()
    )


(
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", "$kafka_address")
    .option("subscribe", "shop.bench.orders")
    .option("startingOffsets", "earliest")
    .load()
    .where("value IS NOT NULL")
    .writeStream.option("checkpointLocation", "$folder/checkpoint")
    .foreachBatch(merge)
    .start()
    .awaitTermination()
)
