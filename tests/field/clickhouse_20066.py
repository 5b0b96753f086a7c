"""Single statements change rows of two tables, by a join or by a trigger: the binlog names all of the tables first, and
then has their rows."""

from tests.field.case import Case

CASE = Case(
    report="ClickHouse/ClickHouse#20066",
    problem="Rows of a statement that changes several tables are dropped, or applied to the wrong table.",
    statements=(
        "CREATE TABLE orders (id INT PRIMARY KEY, total INT, state VARCHAR(10))",
        "CREATE TABLE order_lines (id INT PRIMARY KEY, order_id INT, price INT)",
        "INSERT INTO orders VALUES (1, 0, 'new'), (2, 0, 'new'), (3, 0, 'new')",
        "INSERT INTO order_lines VALUES (10, 1, 5), (11, 1, 7), (20, 2, 9)",
        (
            "UPDATE orders o JOIN order_lines l ON l.order_id = o.id SET o.state = 'paid', l.price = l.price * 2 "
            "WHERE o.id < 3"
        ),
        "DELETE o, l FROM orders o JOIN order_lines l ON l.order_id = o.id WHERE o.id = 2",
        (
            "CREATE TRIGGER add_up AFTER INSERT ON order_lines FOR EACH ROW "
            "UPDATE orders SET total = total + NEW.price WHERE id = NEW.order_id"
        ),
        "INSERT INTO order_lines VALUES (30, 3, 4), (12, 1, 6)",
    ),
    rows={
        "orders": [(1, 6, "paid"), (3, 4, "new")],
        "order_lines": [(10, 1, 10), (11, 1, 14), (12, 1, 6), (30, 3, 4)],
    },
)
