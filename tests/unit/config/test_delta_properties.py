"""The layout of Delta tables in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.base.errors import ConfigError
from cdc.config import DestinationConfig, load
from cdc.lake.delta.maintenance import retention_h


def load_with(folder: Path, apply: str, override: str = "{}") -> DestinationConfig:
    file = folder / "shop.yaml"
    file.write_text(
        "source: {url: 'mysql://cdc@db.example', password_env: PW, server_id: 7}\n"
        f"tables: {{include: ['shop\\..*'], overrides: {{shop.t: {override}}}}}\n"
        f"store: {{path: s}}\nmeta: {{path: m}}\napply: {{target: ./lake, {apply}}}\n",
        encoding="utf-8",
    )
    return load(file)


def test_properties_of_a_table_are_added_to_those_of_all(tmp_path: Path) -> None:
    config = load_with(
        tmp_path,
        "properties: {delta.enableChangeDataFeed: true, delta.checkpointInterval: 20, owner: sales}",
        "{properties: {owner: stock}, cluster_by: [a, b]}",
    )
    shared = {"delta.enableChangeDataFeed": "true", "delta.checkpointInterval": "20"}
    assert config.apply.properties == {**shared, "owner": "sales"}
    assert config.table_apply("shop.t").properties == {**shared, "owner": "stock"}
    assert config.table_apply("shop.t").cluster_by == ("a", "b")


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        ("properties: {towpath.mode: append}", "towpath.mode: Towpath keeps its own records"),
        ("properties: {delta.enableDeletionVectors: true}", "set deletion_vectors instead"),
        ("properties: {delta.columnMapping.mode: name}", "Towpath switches column mapping on"),
        ("properties: {delta.appendOnly: true}", "merges need tables that can be updated"),
        (
            "properties: {delta.compatibility.symlinkFormatManifest.enabled: true}",
            "Delta writes no manifests for tables with column mapping or deletion vectors",
        ),
        (
            "properties: {delta.enableRowTracking: true}",
            "delta.enableRowTracking: Delta refuses the names of its hidden",
        ),
        ("properties: {delta.targetFileSize: 64mb}", "delta.targetFileSize: Delta 4.4 does not know it outside"),
        ("properties: {delta.universalFormat.enabledFormats: iceberg}", "are not published for this Spark"),
        ("properties: {delta.feature.rowTracking: supported}", "is not among Delta's properties"),
        ("properties: {option.serialization.format: 1}", "takes such a property for an option"),
        ('properties: {"a\' b": 1}', "is not the name of a property"),
        ("properties: {owner: [a]}", "properties.owner"),
        ("cluster_by: [a, b, c, d, e]", "cluster_by"),
        ("cluster_by: [a], partition_by: [b]", "partition_by and cluster_by contradict each other"),
    ],
)
def test_what_cannot_be_set_is_refused(apply: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        load_with(tmp_path, apply)
    assert message in str(raised.value)


def test_a_table_can_leave_what_all_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contradict each other"):
        load_with(tmp_path, "cluster_by: [a]", "{partition_by: [b]}")
    config = load_with(tmp_path, "cluster_by: [a]", "{partition_by: [b], cluster_by: []}")
    assert config.table_apply("shop.t").cluster_by == ()


@pytest.mark.parametrize(
    ("text", "hours"),
    [(None, 168), ("interval 2 days", 48), ("30 minutes", 0.5), ("INTERVAL 1 WEEK", 168), ("a while", None)],
)
def test_retentions_are_read_as_delta_writes_them(text: str | None, hours: float | None) -> None:
    properties = {} if text is None else {"delta.deletedFileRetentionDuration": text}
    assert retention_h(properties) == hours
