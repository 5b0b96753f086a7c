"""Clauses put columns after names that only a later clause of the same statement gives."""

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#1216",
    problem="ADD COLUMN … AFTER a name that a later clause gives to a column stops the reader.",
    statements=(
        "CREATE TABLE tasks (id INT PRIMARY KEY, item_id INT NOT NULL, kind VARCHAR(10))",
        "INSERT INTO tasks VALUES (1, 11, 'a'), (2, 22, 'b')",
        (
            "ALTER TABLE tasks ADD COLUMN target_type VARCHAR(20) DEFAULT 'Item' AFTER target_id, "
            "CHANGE COLUMN item_id target_id INT DEFAULT NULL, ADD INDEX by_target (target_id, target_type)"
        ),
        "INSERT INTO tasks VALUES (3, 33, 'Note', 'c')",
        "ALTER TABLE tasks CHANGE COLUMN id id INT NOT NULL AFTER label, CHANGE COLUMN kind label VARCHAR(10)",
        "INSERT INTO tasks VALUES (44, 'Memo', 'd', 4)",
    ),
    rows={"tasks": [(11, "Item", "a", 1), (22, "Item", "b", 2), (33, "Note", "c", 3), (44, "Memo", "d", 4)]},
)
