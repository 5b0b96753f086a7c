"""Describes this package to Airflow: the entry point ``apache_airflow_provider``."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Returns name and operators, in Airflow's provider schema."""
    return {
        "package-name": "towpath",
        "name": "Towpath",
        "description": "MySQL and MariaDB changes into Delta Lake tables.",
        "integrations": [{"integration-name": "Towpath", "external-doc-url": "", "tags": ["software"]}],
        "operators": [{"integration-name": "Towpath", "python-modules": ["cdc.airflow.operators"]}],
    }
