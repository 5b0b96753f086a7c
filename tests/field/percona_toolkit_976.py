"""pt-online-schema-change did not copy a column that RENAME COLUMN names anew. Its triggers fill the column for
rows that change while it works, and the copied rows have NULL on the source."""

from tests.field.case import Case

CASE = Case(
    report="percona/percona-toolkit#976",
    problem="The tool loses the values of a renamed column; a reader that follows the rename still shows them.",
    statements=(
        "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(20), city VARCHAR(20))",
        "INSERT INTO people VALUES (1, 'Ann', 'Oslo'), (2, 'Bob', 'Rome'), (4, 'Di', 'Lund')",
        "CREATE TABLE `_people_new` LIKE people",
        "ALTER TABLE `_people_new` RENAME COLUMN name TO full_name",
        (
            "CREATE TRIGGER pt_osc_people_del AFTER DELETE ON people FOR EACH ROW "
            "DELETE IGNORE FROM `_people_new` WHERE `_people_new`.id <=> OLD.id"
        ),
        (
            "CREATE TRIGGER pt_osc_people_upd AFTER UPDATE ON people FOR EACH ROW "
            "REPLACE INTO `_people_new` (id, full_name, city) VALUES (NEW.id, NEW.name, NEW.city)"
        ),
        (
            "CREATE TRIGGER pt_osc_people_ins AFTER INSERT ON people FOR EACH ROW "
            "REPLACE INTO `_people_new` (id, full_name, city) VALUES (NEW.id, NEW.name, NEW.city)"
        ),
        "INSERT INTO people VALUES (3, 'Cy', 'Bern')",
        "UPDATE people SET city = 'Nice' WHERE id = 2",
        "DELETE FROM people WHERE id = 1",
        "INSERT LOW_PRIORITY IGNORE INTO `_people_new` (id, city) SELECT id, city FROM people",
        "RENAME TABLE people TO `_people_old`, `_people_new` TO people",
        "DROP TABLE IF EXISTS `_people_old`",
        "INSERT INTO people VALUES (5, 'Eve', 'Kiel')",
    ),
    rows={"people": [(2, "Bob", "Nice"), (3, "Cy", "Bern"), (4, None, "Lund"), (5, "Eve", "Kiel")]},
)
