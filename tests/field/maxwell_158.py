"""Parts of statements stand in conditional comments: the server executes those of versions up to its own, and
passes over the others."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#158",
    problem="The IF NOT EXISTS in a conditional comment is passed over, and the reader creates a table that is there.",
    statements=(
        "CREATE TABLE cdctest (id INT PRIMARY KEY, v VARCHAR(10))",
        "INSERT INTO cdctest VALUES (1, 'a')",
        "CREATE TABLE /*! IF NOT EXISTS */ cdctest (id INT UNSIGNED NOT NULL AUTO_INCREMENT, PRIMARY KEY (id))",
        "ALTER TABLE cdctest /*!50000 ADD COLUMN w INT DEFAULT 4 */ /*!99999 , DROP COLUMN v */",
        "INSERT INTO cdctest VALUES (2, 'b', 5)",
        "/*!40000 ALTER TABLE cdctest RENAME COLUMN v TO label */",
        "INSERT INTO cdctest (id, label) VALUES (3, 'c')",
    ),
    rows={"cdctest": [(1, "a", 4), (2, "b", 5), (3, "c", 4)]},
)
