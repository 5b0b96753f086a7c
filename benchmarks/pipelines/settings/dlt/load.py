"""Copies the table into Delta with dlt."""

import dlt
from dlt.sources.sql_database import sql_table
from sqlalchemy import Double, Table


def read_doubles_as_floats(table: Table) -> None:
    for column in table.columns:
        if isinstance(column.type, Double):
            column.type = Double(asdecimal=False)


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
    table_adapter_callback=read_doubles_as_floats,
)
pipeline.run(orders, write_disposition="replace", table_format="delta", loader_file_format="parquet")
