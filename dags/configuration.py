"""Defines no DAG: shows errors in the configuration files as an Airflow import error.

It is a file of its own because Airflow hides all DAGs of a file with an import error, and the destinations with a valid
configuration must keep running.
"""

from cdc.airflow import check_configurations, conf_folder

check_configurations(conf_folder(__file__))
