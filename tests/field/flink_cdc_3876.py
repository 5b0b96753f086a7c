"""Vitess exchanges a table and its copy by three renames in one statement; here the name in the middle is in a database
that is not captured."""

from tests.field.case import Case

CASE = Case(
    report="apache/flink-cdc#3876",
    problem="A RENAME TABLE of several tables is not recognised, and the exchanged tables keep each other's columns.",
    statements=(
        "CREATE DATABASE x_{db}",
        "CREATE TABLE customers (id INT PRIMARY KEY, name VARCHAR(20), phone VARCHAR(20))",
        "INSERT INTO customers VALUES (1, 'Ann', '111'), (2, 'Bob', '222')",
        "CREATE TABLE customers_copy LIKE customers",
        "ALTER TABLE customers_copy DROP COLUMN phone",
        "INSERT INTO customers_copy SELECT id, name FROM customers",
        "RENAME TABLE customers TO x_{db}.swap, customers_copy TO customers, x_{db}.swap TO customers_copy",
        "INSERT INTO customers VALUES (3, 'Cy')",
        "UPDATE customers_copy SET phone = '333' WHERE id = 1",
        "DROP DATABASE x_{db}",
    ),
    rows={
        "customers": [(1, "Ann"), (2, "Bob"), (3, "Cy")],
        "customers_copy": [(1, "Ann", "333"), (2, "Bob", "222")],
    },
)
