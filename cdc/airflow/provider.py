"""Describes this package to Airflow: the entry point ``apache_airflow_provider``. Imports nothing of Airflow, because
Airflow calls it while it is being imported."""

from __future__ import annotations

from typing import Any

CONNECTION_TYPE = "towpath"
HOOK_NAME = "Towpath (MySQL or MariaDB source)"
_THERE = "Path on the machine that connects."
TLS_FIELDS = {
    "ssl_mode": ("TLS", "disabled, preferred (the default), required, verify_ca or verify_identity."),
    "ssl_ca": ("Certificate authority (PEM file)", f"{_THERE} With it the default is verify_identity."),
    "ssl_cert": ("Client certificate (PEM file)", f"{_THERE} For an account that requires a certificate."),
    "ssl_key": ("Key of the client certificate (PEM file)", _THERE),
}
"""Fields of a connection beside the standard ones: a label and a description of each."""
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
        "asset-uris": [
            {
                "schemes": ["towpath"],
                "handler": "cdc.airflow.assets.checked_uri",
                "to_openlineage_converter": "cdc.airflow.lineage.dataset_of_asset",
            }
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
                    name: {"label": label, "description": description, "schema": {"type": ["string", "null"]}}
                    for name, (label, description) in TLS_FIELDS.items()
                },
            }
        ],
    }
