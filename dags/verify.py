"""One verify DAG per configuration file: ``verify_<destination>``, which compares the tables with the source."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["verify"]))
