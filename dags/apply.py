"""One scheduled apply DAG per configuration file: an Airflow DAG named ``apply_<destination>``."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["apply"]))
