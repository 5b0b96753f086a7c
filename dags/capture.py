"""One continuous capture DAG per configuration file: an Airflow DAG named ``capture_<destination>``."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["capture"]))
