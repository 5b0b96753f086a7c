"""docs/reference/ddl.md is what the corpus makes it, and every statement of the corpus has an outcome."""

from __future__ import annotations

from tests.support.ddl_corpus import corpus
from tests.support.ddl_page import PAGE, page, predicted


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "write it with `.venv/bin/python -m tests.support.ddl_page`"


def test_hardly_a_statement_is_refused() -> None:
    refused = [case.name for case in corpus() if predicted(case).outcome == "refused"]
    assert len(refused) <= 5, refused
