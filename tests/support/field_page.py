"""The page of the field's reports, made from the cases in ``tests/field``.

``python -m tests.support.field_page`` writes it; a test fails while it is out of date.
"""

from __future__ import annotations

from pathlib import Path

from tests.field.case import Case, Scenario, all_cases

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "field-reports.md"
_HEAD = """# Reports from the field

Users of other tools have reported the following problems with MySQL, MariaDB or a lake. Each report is a test of
Towpath's, in `tests/field`: the input in our own words, on real servers, through the whole loop. *Equal* means that the
rows in Delta, the rows that SELECT shows and the rows that are written down in the test are the same. *Refused* means
that the table is left out, the run says so, and the sentence names the reason; other tables go on.

`make test-field` runs all of them; this page is made from them.

| report | problem there | Towpath |
|---|---|---|
"""


def page() -> str:
    """Returns the page."""
    return _HEAD + "".join(map(_row, all_cases().values()))


def _row(case: Case | Scenario) -> str:
    answer = case.answer
    servers = {"mysql9": "MySQL", "mariadb11": "MariaDB"}
    if len(case.servers) == 1:
        answer += f" ({servers[case.servers[0]]} only)"
    return f"| [{case.report}]({case.url}) | {case.problem.replace('|', chr(92) + '|')} | {answer} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
