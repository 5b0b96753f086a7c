"""Puts the version of Towpath into the pages of the site: a hook of MkDocs, see mkdocs.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.version import package_version

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Shows the version at the foot of each page."""
    config.copyright = f"Towpath {package_version()}"
    return config
