"""Makes no DAG: shows what is wrong in the configuration files as an Airflow import error.

It stands in a file of its own because Airflow hides all DAGs of a file that has an import error, and the destinations
whose configuration is sound must go on.
"""

from cdc.airflow import check_configurations, conf_folder

check_configurations(conf_folder(__file__))
