"""Attestations: signed documents that say what a verification has proved of Delta tables, and of which files.

:mod:`.statement` makes the statement of a verification, :mod:`.envelope` signs it, :mod:`.check` compares it with the
tables later, without a source, a store or Spark. :mod:`.files` reads the files of one version of a Delta table. The
document is described in ``docs/formats/attestation.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import UsageError
from cdc.disk.durable import replace_file
from cdc.lake.attestation.envelope import seal, signing_key

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.lake.verify.report import VerificationReport


def require_possible(config: DestinationConfig, path: Path) -> None:
    """Raises what would keep :func:`write` from signing, before the tables are compared: ConfigError without a key,
    UsageError if there is such a file, or no such folder."""
    signing_key(config)
    if path.exists():
        raise UsageError("exists already", place=str(path), remedy="Name a new file: attestations are kept.")
    if not path.absolute().parent.is_dir():
        raise UsageError("its folder does not exist", place=str(path), remedy="Make the folder first.")


def write(
    config: DestinationConfig,
    report: VerificationReport,
    path: Path,
    progress: Callable[[str], object] = lambda _: None,
) -> None:
    """Signs the statement of a verification, and writes it. Raises what :func:`signing_key` and :func:`make_statement`
    raise, StorageError."""
    from cdc.lake.attestation.statement import make_statement  # loads PyArrow, which files of DAGs do without

    replace_file(path, seal(make_statement(config, report, progress), signing_key(config)))
