"""One DAG per configuration file with ``airflow.interval``: ``intervals_<destination>``, which publishes intervals."""

from cdc.airflow import build_dags, conf_folder

globals().update(build_dags(conf_folder(__file__), kinds=["intervals"]))
