"""Under ANSI_QUOTES the server writes its own DROP TABLE with double quotes, and a table of other columns, named by
keywords, takes the name."""

from datetime import date

from tests.field.case import Case

CASE = Case(
    report="zendesk/maxwell#831",
    problem="DROP TABLE of a session with ANSI_QUOTES cannot be parsed, and the reader stops.",
    statements=(
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')",
        'CREATE TABLE "kudu2" ("id" INT PRIMARY KEY, "a" VARCHAR(10))',
        "INSERT INTO \"kudu2\" VALUES (1, 'x'), (2, 'y')",
        'DROP TABLE "kudu2"',
        'CREATE TABLE "kudu2" ("select" DATE, "order" VARCHAR(10) NOT NULL DEFAULT \'a"b\', PRIMARY KEY ("order"))',
        'INSERT INTO "kudu2" ("select") VALUES (\'2024-02-29\')',
        'ALTER TABLE "kudu2" ADD COLUMN "group" VARCHAR(10) DEFAULT \'"none"\'',
        "INSERT INTO \"kudu2\" VALUES ('2024-03-01', 'z', 'g')",
    ),
    rows={"kudu2": [(date(2024, 2, 29), 'a"b', '"none"'), (date(2024, 3, 1), "z", "g")]},
)
