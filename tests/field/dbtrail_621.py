"""Sessions write into the same tables under three GTID domains, each with numbers of its own, DDL among them."""

from tests.field.case import Case, Session

CASE = Case(
    report="dbtrail/dbtrail#621",
    problem="A reader that takes the GTIDs of several domains for one sequence may skip events, or read them again.",
    statements=(
        "CREATE TABLE ledger (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE staging (id INT PRIMARY KEY)",
        Session("east", "SET SESSION gtid_domain_id = 11"),
        Session("west", "SET SESSION gtid_domain_id = 12"),
        Session("east", "INSERT INTO ledger VALUES (1, 1), (2, 2)"),
        Session("west", "UPDATE ledger SET v = 20 WHERE id = 2"),
        "INSERT INTO ledger VALUES (3, 3)",
        Session("east", "ALTER TABLE ledger ADD COLUMN w INT DEFAULT 5"),
        Session("west", "INSERT INTO ledger VALUES (4, 4, 6)"),
        "INSERT INTO staging VALUES (1), (2)",
        Session("west", "TRUNCATE TABLE staging"),
        Session("east", "INSERT INTO staging VALUES (2), (3)"),
        "DELETE FROM ledger WHERE id = 1",
    ),
    rows={
        "ledger": [(2, 20, 5), (3, 3, 5), (4, 4, 6)],
        "staging": [(2,), (3,)],
    },
    servers=("mariadb11",),
)
