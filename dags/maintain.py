"""One maintain DAG per configuration file: ``maintain_<destination>``, which compacts and vacuums the tables."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["maintain"]))
