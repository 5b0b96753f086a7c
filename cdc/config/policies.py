"""Policies for columns that contradict each other, as far as a configuration file alone can tell."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from cdc.config.apply import ApplyConfig
from cdc.config.destination import DestinationConfig
from cdc.errors import ConfigError


def check_policies(config: DestinationConfig, file: Path) -> None:
    """Raises ConfigError for policies that contradict each other, as far as the file alone can tell."""
    places = [("apply", config.apply)]
    places += [(f"tables.overrides.{table}", config.table_apply(table)) for table in config.tables.overrides]
    for key, apply in places:
        found = _contradiction(apply)
        if found is not None:
            raise ConfigError(f"{key}.{found[0]}", place=str(file), remedy=found[1])


def _contradiction(apply: ApplyConfig) -> tuple[str, str] | None:
    """What contradicts each other, and the remedy."""
    for name, policy in apply.columns.items():
        if policy.kind == "hash" and apply.hash_key_env is None and apply.hash_key_file is None:
            return (
                f"columns.{name}: hash needs a key, and there is none",
                "Name it with apply.hash_key_env or apply.hash_key_file.",
            )
    keys = {key.lower() for key in apply.keys or ()} if apply.mode != "append" else set()
    for name, policy in apply.columns.items():
        if name in keys and policy.kind in ("drop", "null", "mask"):
            return (
                f"columns.{name}: {policy} and keys contradict each other: a key must tell rows apart",
                "Remove one of them; hash and rename are possible for keys.",
            )
    names = Counter(policy.name.lower() for policy in apply.columns.values() if policy.kind == "rename")
    for name, times in names.items():
        if times > 1:
            return f"columns: {times} columns are renamed to {name}", "Give each a name of its own."
    return None
