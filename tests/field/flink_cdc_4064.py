"""gh-ost changes the same table twice in a row, with writes of its users in between."""

from tests.field.case import Case

CASE = Case(
    report="apache/flink-cdc#4064",
    problem="A second change of the same table by gh-ost fails, because the first left a wrong definition behind.",
    statements=(
        "CREATE TABLE orders (id INT PRIMARY KEY, item VARCHAR(20))",
        "INSERT INTO orders VALUES (1, 'pen'), (2, 'ink')",
        "create /* gh-ost */ table `_orders_gho` like `orders`",
        "alter /* gh-ost */ table `_orders_gho` add column price INT NOT NULL DEFAULT 5",
        "insert /* gh-ost */ ignore into `_orders_gho` (id, item) (select id, item from orders)",
        "UPDATE orders SET item = 'nib' WHERE id = 2",
        "replace /* gh-ost */ into `_orders_gho` (id, item) values (2, 'nib')",
        "rename /* gh-ost */ table `orders` to `_orders_del`, `_orders_gho` to `orders`",
        "drop /* gh-ost */ table if exists `_orders_del`",
        "INSERT INTO orders VALUES (3, 'cap', 7)",
        "create /* gh-ost */ table `_orders_gho` like `orders`",
        "alter /* gh-ost */ table `_orders_gho` drop column item, add column qty SMALLINT DEFAULT 1 first",
        "insert /* gh-ost */ ignore into `_orders_gho` (id, price) (select id, price from orders)",
        "rename /* gh-ost */ table `orders` to `_orders_del`, `_orders_gho` to `orders`",
        "INSERT INTO orders (id, price) VALUES (4, 9)",
    ),
    rows={
        "orders": [(1, 1, 5), (1, 2, 5), (1, 3, 7), (1, 4, 9)],
        "_orders_del": [(1, "pen", 5), (2, "nib", 5), (3, "cap", 7)],
    },
)
