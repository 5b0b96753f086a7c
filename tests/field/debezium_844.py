"""Members of ENUM and SET with commas, quotes, backslashes and parentheses (DBZ-1226), added by an ALTER TABLE."""

from tests.field.case import Case

CASE = Case(
    report="debezium/debezium#844",
    problem="ENUM members with a comma or an escaped character were split, so that values had other members' names.",
    statements=(
        "CREATE TABLE stations (id INT PRIMARY KEY, kind ENUM('station', 'plane') NOT NULL, tags SET('a', 'it''s'))",
        "INSERT INTO stations VALUES (1, 'plane', 'a,it''s')",
        (
            "ALTER TABLE stations MODIFY COLUMN kind ENUM('station', 'plane', 'a,b', 'it''s', 'c,\\'d',"
            " 'back\\\\slash', 'say \"hi\"', 'f(x)', 'last') NOT NULL"
        ),
        "INSERT INTO stations VALUES (2, 'a,b', NULL), (3, 'it''s', 'it''s'), (4, 'c,\\'d', 'a'), (5, 'last', '')",
        "INSERT INTO stations VALUES (6, 'back\\\\slash', 'a'), (7, 'say \"hi\"', 'a'), (8, 'f(x)', 'a')",
        "UPDATE stations SET kind = 'last' WHERE id = 1",
    ),
    rows={
        "stations": [
            (1, "last", "a,it's"),
            (2, "a,b", None),
            (3, "it's", "it's"),
            (4, "c,'d", "a"),
            (5, "last", ""),
            (6, "back\\slash", "a"),
            (7, 'say "hi"', "a"),
            (8, "f(x)", "a"),
        ],
    },
)
