"""What Airflow lists about this package: the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Name and operators, in the form of Airflow's provider schema."""
    return {
        "package-name": "towpath",
        "name": "Towpath",
        "description": "MySQL and MariaDB changes into Delta Lake tables.",
        "integrations": [{"integration-name": "Towpath", "external-doc-url": "", "tags": ["software"]}],
        "operators": [{"integration-name": "Towpath", "python-modules": ["cdc.airflow.operators"]}],
    }
