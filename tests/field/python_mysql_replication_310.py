"""Functions that change a part of a JSON document write the part in place and leave holes in the stored document."""

from tests.field.case import Case

CASE = Case(
    report="julien-duponchelle/python-mysql-replication#310",
    problem="JSON documents were read wrongly once a partial update had left a hole in them.",
    statements=(
        "CREATE TABLE people (id INT PRIMARY KEY, j JSON)",
        """INSERT INTO people VALUES (1, '{"id": 1, "name": "Monica", "types": [1, "123"]}')""",
        """INSERT INTO people VALUES (2, '{"id": 2, "name": "Chandler", "types": [2, "long"], "zip": "80331"}')""",
        "UPDATE people SET j = JSON_SET(j, '$.name', 'Mon') WHERE id = 1",
        "UPDATE people SET j = JSON_REMOVE(j, '$.name') WHERE id = 2",
        "UPDATE people SET j = JSON_REPLACE(j, '$.types[1]', '9', '$.zip', '1') WHERE id = 2",
        "UPDATE people SET j = JSON_REMOVE(j, '$.id') WHERE id = 1",
    ),
    rows={
        "people": [
            (1, '{"name": "Mon", "types": [1, "123"]}'),
            (2, '{"id": 2, "zip": "1", "types": [2, "9"]}'),
        ],
    },
    servers=("mysql9",),
)
