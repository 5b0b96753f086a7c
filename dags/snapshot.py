"""One scheduled snapshot DAG per configuration file: ``snapshot_<destination>``, for tables that are due."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["snapshot"]))
