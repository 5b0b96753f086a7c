"""Copies the table into Delta with dlt."""

import dlt
from dlt.sources.sql_database import sql_table
from sqlalchemy import Double
from sqlalchemy.dialects.mysql import DOUBLE

pipeline = dlt.pipeline(
    pipeline_name="orders",
    pipelines_dir="$folder/dlt",
    destination=dlt.destinations.filesystem(bucket_url="file://$folder/lake"),
    dataset_name="bench",
)
orders = sql_table(
    credentials="mysql+pymysql://$user:$password@$host:$port/bench",
    table="orders",
    backend="pyarrow",
    chunk_size=50_000,
    reflection_level="full_with_precision",
    type_adapter_callback=lambda kind: Double() if isinstance(kind, DOUBLE) else kind,
)
pipeline.run(orders, write_disposition="replace", table_format="delta", loader_file_format="parquet")
