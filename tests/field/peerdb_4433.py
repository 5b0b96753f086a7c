"""Sessions compress their transactions and tag their GTIDs, together and one by one, with DDL among them, and several
tables in a transaction."""

from tests.field.case import Case, Session

CASE = Case(
    report="PeerDB-io/peerdb#4433",
    problem="Transactions under binlog_transaction_compression were not read, and tagged GTIDs were not noted.",
    statements=(
        "CREATE TABLE orders (id INT PRIMARY KEY, v VARCHAR(300))",
        "CREATE TABLE lines_of (id INT PRIMARY KEY, order_id INT)",
        "SET SESSION binlog_transaction_compression = ON",
        "INSERT INTO orders VALUES (1, REPEAT('compressed', 30)), (2, NULL)",
        Session("tagged", "SET gtid_next = 'AUTOMATIC:batch'"),
        Session("tagged", "INSERT INTO orders VALUES (3, 'tagged')"),
        Session("both", "SET SESSION binlog_transaction_compression = ON"),
        Session("both", "SET gtid_next = 'AUTOMATIC:both'"),
        Session("both", "BEGIN"),
        Session("both", "INSERT INTO lines_of VALUES (30, 3)"),
        Session("both", "UPDATE orders SET v = 'both' WHERE id = 3"),
        "INSERT INTO lines_of VALUES (10, 1)",
        Session("both", "INSERT INTO lines_of VALUES (31, 3)"),
        Session("both", "COMMIT"),
        "ALTER TABLE orders ADD COLUMN note VARCHAR(20) DEFAULT 'none'",
        Session("tagged", "ALTER TABLE lines_of ADD COLUMN amount INT FIRST"),
        Session("tagged", "UPDATE lines_of SET amount = id * 2"),
        "DELETE FROM orders WHERE id = 2",
        Session("both", "UPDATE orders SET note = 'last' WHERE id = 1"),
        "SET SESSION binlog_transaction_compression = OFF",
        "INSERT INTO orders VALUES (4, 'plain', 'plain')",
        Session("tagged", "DELETE FROM lines_of WHERE id = 31"),
    ),
    rows={
        "orders": [(1, "compressed" * 30, "last"), (3, "both", "none"), (4, "plain", "plain")],
        "lines_of": [(20, 10, 1), (60, 30, 3)],
    },
    servers=("mysql9",),
)
