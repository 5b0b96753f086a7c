"""Copies the table into Delta, over as many connections as cores."""

from pyspark.sql import SparkSession

spark = (
    SparkSession.Builder()
    .master("local[$cores]")
    .config("spark.jars", "$spark_jars")
    .config("spark.driver.memory", "3g")
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.databricks.delta.snapshotPartitions", "$cores")
    .config("spark.sql.legacy.charVarcharAsString", "true")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
source = {
    "url": "jdbc:mysql://$host:$port/bench?useCursorFetch=true&connectionTimeZone=UTC&tinyInt1isBit=false",
    "driver": "com.mysql.cj.jdbc.Driver",
    "user": "$user",
    "password": "$password",
    "fetchsize": "10000",
}
ends = spark.read.format("jdbc").options(**source, query="SELECT MIN(id) AS low, MAX(id) AS high FROM orders").load()
low, high = ends.first() or (0, 0)
(
    spark.read.format("jdbc")
    .options(**source, dbtable="orders", partitionColumn="id", lowerBound=low, upperBound=high, numPartitions="$cores")
    .load()
    .write.format("delta")
    .mode("overwrite")
    .option("overwriteSchema", "true")
    .save("$folder/lake")
)
