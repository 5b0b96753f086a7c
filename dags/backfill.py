"""One backfill DAG per configuration file: ``backfill_<destination>``, started by hand with a form."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["backfill"]))
