"""Puts kernels that were built ahead (``make kernels``) into the wheel, which then is one for this platform.

Without them the wheel is for all platforms, and its kernels are compiled when they are called first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = "cdc/kernels/prebuilt"


class KernelsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling when it builds a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the files. Raises ValueError if they were built from other sources: the installed package would not use
        them."""
        root = Path(self.root)
        indexes = sorted((root / _FOLDER).glob("kernels-*.json"))
        if version == "editable" or not indexes:
            return
        sys.path.insert(0, self.root)
        try:
            from cdc.kernels.cache import source_digest
        finally:
            sys.path.remove(self.root)
        for index in indexes:
            for module, digest in json.loads(index.read_text(encoding="utf-8"))["modules"].items():
                if source_digest(root / "cdc" / f"{module.replace('.', '/')}.py") != digest:
                    raise ValueError(
                        f"{index} was built from another {module}. Build the kernels again: make kernels; or remove"
                        f" {_FOLDER} for a wheel without them."
                    )
        build_data["artifacts"].append(f"/{_FOLDER}/kernels-*")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_2_17_{os.uname().machine}"
