"""Describes this package to Airflow: the entry point ``apache_airflow_provider``. Imports nothing of Airflow, because
Airflow calls it while it is being imported."""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "towpath"
HOOK_NAME = "Towpath (MySQL or MariaDB source)"
_HOOK = "cdc.airflow.hook.TowpathHook"
_INTEGRATION = "Towpath"


def get_provider_info() -> dict[str, Any]:
    """Returns what the package adds to Airflow, in Airflow's provider schema."""
    return {
        "package-name": "towpath",
        "name": "Towpath",
        "description": "MySQL and MariaDB changes into Delta Lake tables.",
        "integrations": [{"integration-name": _INTEGRATION, "external-doc-url": "", "tags": ["software"]}],
        "operators": [
            {
                "integration-name": _INTEGRATION,
                "python-modules": ["cdc.airflow.operators", "cdc.airflow.task_group"],
            }
        ],
        "triggers": [{"integration-name": _INTEGRATION, "python-modules": ["cdc.airflow.triggers"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": ["cdc.airflow.hook"]}],
        "extra-links": [
            f"cdc.airflow.links.{name}" for name in ("TowpathManifestLink", "TowpathTableLink", "TowpathSparkLink")
        ],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": _HOOK,
                "hook-name": HOOK_NAME,
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "extra"],
                    "relabeling": {"login": "User"},
                    "placeholders": {"host": "db.example", "port": "3306", "login": "cdc"},
                },
                "conn-fields": {
                    "ssl_ca": {
                        "label": "Certificate authority (PEM file)",
                        "description": "Path on the machine that connects. With it the server's certificate is "
                        "verified; without it TLS is used if the server offers it.",
                        "schema": {"type": ["string", "null"]},
                    }
                },
            }
        ],
    }
