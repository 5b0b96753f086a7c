"""Two XA transactions are prepared, others commit after them; then one of the two is rolled back, and one commits."""

from tests.field.case import Case, Session

CASE = Case(
    report="block/spirit#1079",
    problem="Rows of an XA transaction are applied when it is prepared, and stay if it is rolled back.",
    statements=(
        "CREATE TABLE accounts (id INT PRIMARY KEY, cents INT)",
        "INSERT INTO accounts VALUES (1, 100), (2, 200)",
        Session("a", "XA START '{db}-a'"),
        Session("a", "INSERT INTO accounts VALUES (3, 300)"),
        Session("a", "UPDATE accounts SET cents = 90 WHERE id = 1"),
        Session("a", "XA END '{db}-a'"),
        Session("a", "XA PREPARE '{db}-a'"),
        Session("b", "XA START '{db}-b'"),
        Session("b", "INSERT INTO accounts VALUES (4, 400)"),
        Session("b", "XA END '{db}-b'"),
        Session("b", "XA PREPARE '{db}-b'"),
        "UPDATE accounts SET cents = 250 WHERE id = 2",
        "INSERT INTO accounts VALUES (5, 500)",
        Session("b", "XA ROLLBACK '{db}-b'"),
        Session("a", "XA COMMIT '{db}-a'"),
        "UPDATE accounts SET cents = cents + 1 WHERE id = 3",
    ),
    rows={"accounts": [(1, 90), (2, 250), (3, 301), (5, 500)]},
)
