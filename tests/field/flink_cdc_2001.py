"""A multi-valued index of JSON is a hidden column. Early versions of MySQL 8.0 have it in the binlog's table map, with
a type of its own: an array of a type."""

from tests.field.case import Case

CASE = Case(
    report="apache/flink-cdc#2001",
    problem="The table map of a table with a typed array was not understood, and the stream stopped.",
    statements=(
        (
            "CREATE TABLE customers (id INT PRIMARY KEY, info JSON, name VARCHAR(20),"
            " KEY zips ((CAST(info->'$.zip' AS UNSIGNED ARRAY))))"
        ),
        """INSERT INTO customers VALUES (1, '{"zip": [94582, 94536]}', 'Jack'), (2, '{"zip": []}', 'Jill')""",
        """INSERT INTO customers VALUES (3, '{"city": "Rome"}', 'Bob'), (4, NULL, NULL)""",
        """UPDATE customers SET info = '{"zip": [1, 2, 3]}' WHERE id = 2""",
        "ALTER TABLE customers ADD COLUMN note VARCHAR(20)",
        """INSERT INTO customers VALUES (5, '{"zip": [7]}', 'Ted', 'last')""",
        "ALTER TABLE customers ADD KEY tags ((CAST(info->'$.tags' AS CHAR(8) ARRAY)))",
        """UPDATE customers SET info = '{"zip": 8, "tags": ["a", "b"]}', note = 'two indexes' WHERE id = 1""",
        "DELETE FROM customers WHERE id = 3",
    ),
    rows={
        "customers": [
            (1, '{"zip": 8, "tags": ["a", "b"]}', "Jack", "two indexes"),
            (2, '{"zip": [1, 2, 3]}', "Jill", None),
            (4, None, None, None),
            (5, '{"zip": [7]}', "Ted", "last"),
        ],
    },
    servers=("mysql9",),
)
