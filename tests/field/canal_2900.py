"""A table is created by (LIKE …), and statements with IF NOT EXISTS name a table that is there, with other columns
than it has."""

from tests.field.case import Case

CASE = Case(
    report="alibaba/canal#2900",
    problem="Rows of a table that was created by (LIKE …) cannot be read, and IF NOT EXISTS changes one that is there.",
    statements=(
        "CREATE TABLE settings (id INT PRIMARY KEY, label VARCHAR(20), amount INT)",
        "CREATE TABLE settings_copy (LIKE settings)",
        "INSERT INTO settings_copy VALUES (1, 'a', 10)",
        "CREATE TABLE template (amount VARCHAR(5), id INT PRIMARY KEY)",
        "CREATE TABLE IF NOT EXISTS settings LIKE template",
        "INSERT INTO settings VALUES (1, 'x', 5)",
        "CREATE TABLE IF NOT EXISTS settings (id INT PRIMARY KEY, label LONGTEXT)",
        "INSERT INTO settings VALUES (2, 'y', 6)",
        "ALTER TABLE settings_copy DROP COLUMN label",
        "INSERT INTO settings_copy VALUES (2, 20)",
    ),
    rows={
        "settings": [(1, "x", 5), (2, "y", 6)],
        "settings_copy": [(1, 10), (2, 20)],
    },
)
