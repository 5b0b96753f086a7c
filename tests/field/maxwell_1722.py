"""A sequence whose name begins with digits gives a table its keys. It has a table's name, and rows in the binlog."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#1722",
    problem="CREATE SEQUENCE cannot be parsed, and the reader stops.",
    statements=(
        "CREATE SEQUENCE 2169_seq START WITH 5 INCREMENT BY 5 MINVALUE 0 MAXVALUE 9999 CYCLE",
        "CREATE TABLE tickets (id INT PRIMARY KEY DEFAULT (NEXT VALUE FOR 2169_seq), label VARCHAR(10))",
        "INSERT INTO tickets (label) VALUES ('a'), ('b')",
        "ALTER SEQUENCE 2169_seq RESTART 100",
        "INSERT INTO tickets (label) VALUES ('c')",
        "DO NEXTVAL(2169_seq)",
        "INSERT INTO tickets (label) VALUES ('d')",
    ),
    rows={"tickets": [(5, "a"), (10, "b"), (100, "c"), (110, "d")]},
    servers=("mariadb11",),
)
