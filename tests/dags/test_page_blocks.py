"""The DAG files and Airflow's commands that the pages of the documentation print."""

from __future__ import annotations

import shlex

import pytest
from airflow.cli import cli_parser
from airflow.sdk import DAG

from cdc.airflow.compat import has_partitions
from tests.dags.conftest import Write
from tests.support import page_commands
from tests.support.page_commands import calls, commands, python_blocks, spans
from tests.support.page_table import PYTHON

DAG_BLOCKS = [key for key, python in PYTHON.items() if python.shown_by == "tests/dags/test_page_blocks.py"]


@pytest.mark.parametrize(("page", "number"), DAG_BLOCKS)
def test_a_dag_file(page: str, number: int, write_conf: Write) -> None:
    conf = write_conf()
    text = python_blocks(page)[number].text
    for path in ("/etc/towpath", "/srv/towpath/conf"):
        text = text.replace(path, str(conf))
    if "PartitionedAssetTimetable" in text and not has_partitions():
        pytest.skip("partitioned assets need Airflow 3.3")
    names: dict[str, object] = {}
    exec(text, names)
    dags = [value for value in names.values() if isinstance(value, DAG)]
    assert dags or "with DAG(" in text  # a DAG without a name is made as well
    for dag in dags:
        dag.validate()  # type: ignore[no-untyped-call]


def test_airflow_takes_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """One in a sentence may lack arguments, but its options exist."""
    parser = cli_parser.get_parser()
    in_blocks = [
        words for page in page_commands.PAGES for command in commands(page) for words in calls(command, "airflow")
    ]
    in_sentences = [
        shlex.split(code)[1:] for page in page_commands.PAGES for code in spans(page) if code.startswith("airflow ")
    ]
    assert len(in_blocks) >= 2 and len(in_sentences) >= 3
    for words in in_blocks:
        parser.parse_args(words)
    for words in in_sentences:
        with pytest.raises(SystemExit, match="0"):
            parser.parse_args([*words[:2], "--help"])
        shown = capsys.readouterr().out
        assert [word for word in words if word.startswith("--") and word not in shown] == []
