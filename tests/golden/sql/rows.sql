-- Inserts, updates and deletes of one and of many rows, and statements that change nothing.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE orders (id INT PRIMARY KEY, customer VARCHAR(20), total DECIMAL(8,2));
INSERT INTO orders VALUES (1, 'anna', 10.50);
INSERT INTO orders VALUES (2, 'bert', 20), (3, 'carl', 0.05), (4, NULL, NULL);
UPDATE orders SET total = total + 1 WHERE id < 3;
UPDATE orders SET customer = 'nobody' WHERE id = 99;
UPDATE orders SET customer = 'anna' WHERE id = 1;
DELETE FROM orders WHERE id IN (2, 4);
DELETE FROM orders WHERE id = 99;
