"""A session writes partial updates of JSON: rows of its updates have the changes of a document, and whole values of all
other columns."""

from tests.field.case import Case, Session

CASE = Case(
    report="PeerDB-io/peerdb#4538",
    problem="Updates of a session with binlog_row_value_options=PARTIAL_JSON were dropped, other columns included.",
    statements=(
        "CREATE TABLE docs (id INT PRIMARY KEY, j JSON, name VARCHAR(20))",
        """INSERT INTO docs VALUES (1, '{"a": {"b": [1, 2, 3]}, "long": "012345678901234567890"}', 'one')""",
        """INSERT INTO docs VALUES (2, '{"a": 1}', 'two'), (3, '[1, 2]', 'three')""",
        Session("partial", "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'"),
        Session("partial", "UPDATE docs SET name = 'only the name' WHERE id = 2"),
        Session("partial", "UPDATE docs SET j = JSON_SET(j, '$.a.b[1]', 9), name = 'uno' WHERE id = 1"),
        Session("partial", "UPDATE docs SET j = JSON_REMOVE(j, '$.long') WHERE id = 1"),
        Session("partial", "UPDATE docs SET j = JSON_REPLACE(j, '$[0]', 7), name = 'tre' WHERE id = 3"),
        Session("partial", """INSERT INTO docs VALUES (4, '{"new": true}', 'four')"""),
        Session("partial", "UPDATE docs SET id = 5, j = JSON_SET(j, '$.new', false) WHERE id = 4"),
        "DELETE FROM docs WHERE id = 2",
    ),
    rows={
        "docs": [(1, '{"a": {"b": [1, 9, 3]}}', "uno"), (3, "[7, 2]", "tre"), (5, '{"new": false}', "four")],
    },
    servers=("mysql9",),
)
