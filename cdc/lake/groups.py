"""Groups: the destinations that write one set of Delta tables (``apply.shared``), and which of them has which table.

A group has no file of its own. Its members are the destinations of one configuration folder that share a target, and
those that the Delta tables themselves name: they may be configured on other machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError
from cdc.base.units import iso_time_us
from cdc.client import open_meta, open_store
from cdc.config import neighbours

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


def collect(config: DestinationConfig, tables: Mapping[str, Iterable[str]]) -> dict[str, Any] | None:
    """Returns the group of a destination as a document; None for a destination that shares no tables. ``tables``: the
    members that each table names.

    ``complete_until`` is the least of the members', and null if that of one is not known. A member that cannot be read
    has an ``error``, and hinders none of the others.
    """
    if not config.apply.shared:
        return None
    configs, errors = _members(config)
    names = sorted({*configs, *(name for members in tables.values() for name in members)})
    members = [_member(name, configs.get(name), errors.get(name)) for name in names]
    complete_until = [member["complete_until_us"] for member in members]
    least = min(complete_until) if all(complete_until) else 0
    return {
        "target": config.apply.target,
        "complete_until": iso_time_us(least) if least else None,
        "members": [
            {
                "destination": member["destination"],
                "complete_until": iso_time_us(member["complete_until_us"]) if member["complete_until_us"] else None,
                "error": member["error"],
            }
            for member in members
        ],
        "tables": {table: sorted(members) for table, members in sorted(tables.items())},
    }


def _members(config: DestinationConfig) -> tuple[dict[str, DestinationConfig], dict[str, str]]:
    """Returns the members that are configured in the destination's folder, and the errors of files that cannot be
    loaded."""
    configs, errors = {config.name: config}, {}
    for name, other in neighbours(config):
        if isinstance(other, CdcError):
            errors[name] = str(other)
        elif other.apply.shared and other.apply.target == config.apply.target:
            configs[name] = other
    return configs, errors


def _member(name: str, config: DestinationConfig | None, error: str | None) -> dict[str, Any]:
    document: dict[str, Any] = {"destination": name, "complete_until_us": 0, "error": error}
    if config is None:
        document["error"] = error or "it is not configured in this folder"
        return document
    try:
        document["complete_until_us"] = _complete_until_us(config)
    except CdcError as caught:
        document["error"] = str(caught)
    return document


def _complete_until_us(config: DestinationConfig) -> int:
    """Returns the source's time up to which a member's store is complete, µs since 1970; 0 if it is not known."""
    state = open_meta(config).read()
    capture = open_store(config, state.source.base_name if state.source else None).capture_state()
    return 0 if capture is None else capture.complete_until_us


def sentences(group: Mapping[str, Any] | None) -> list[str]:
    """Returns a sentence about the group of a status document, and one for each member whose state is not known."""
    if group is None:
        return []
    names = ", ".join(member["destination"] for member in group["members"])
    until = group["complete_until"] or "not known"
    lines = [f"Shares its tables in {group['target']} ({names}); all together are complete until: {until}."]
    for member in group["members"]:
        if member["error"] is not None:
            lines.append(f"The member {member['destination']} cannot be asked: {member['error']}")
        elif member["complete_until"] is None:
            lines.append(f"The member {member['destination']} has not captured anything yet.")
    return lines
