-- Transactions of several tables, a rollback, savepoints, and an empty transaction.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE orders (id INT PRIMARY KEY, total INT);
CREATE TABLE items (order_id INT, line INT, what VARCHAR(20), PRIMARY KEY (order_id, line));
START TRANSACTION;
INSERT INTO orders VALUES (1, 0);
INSERT INTO items VALUES (1, 1, 'bread'), (1, 2, 'milk');
UPDATE orders SET total = 7 WHERE id = 1;
COMMIT;
START TRANSACTION;
INSERT INTO orders VALUES (2, 0);
ROLLBACK;
START TRANSACTION;
INSERT INTO orders VALUES (3, 3);
SAVEPOINT before_lines;
INSERT INTO items VALUES (3, 1, 'never stored');
ROLLBACK TO SAVEPOINT before_lines;
INSERT INTO items VALUES (3, 2, 'stored');
SAVEPOINT released;
DELETE FROM items WHERE order_id = 1 AND line = 1;
RELEASE SAVEPOINT released;
COMMIT;
START TRANSACTION;
COMMIT;
UPDATE orders, items SET orders.total = 9, items.what = 'both' WHERE orders.id = items.order_id AND orders.id = 3;
DELETE orders, items FROM orders INNER JOIN items WHERE orders.id = items.order_id AND orders.id = 1;
