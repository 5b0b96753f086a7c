-- Temporary tables with the names of captured ones, in sessions whose statements the binlog has as text. Servers mark
-- their statements, except the name that MariaDB gives a temporary table by RENAME TABLE.
-- servers: mariadb11 mysql9 mariadb10
CREATE TABLE orders (id INT PRIMARY KEY, v INT);
INSERT INTO orders VALUES (1, 1);
-- session: text
SET binlog_format = STATEMENT;
CREATE TEMPORARY TABLE orders (id INT, w INT);
INSERT INTO orders VALUES (7, 7);
ALTER TABLE orders ADD COLUMN z INT, DROP COLUMN w;
CREATE INDEX i ON orders (z);
DROP INDEX i ON orders;
UPDATE orders SET z = 9;
DELETE FROM orders WHERE id = 7;
TRUNCATE TABLE orders;
-- session: rows
INSERT INTO orders VALUES (2, 2);
ALTER TABLE orders ADD COLUMN real_one INT;
-- session: text
DROP TABLE orders;
ALTER TABLE orders ADD COLUMN real_too INT;
-- session: rows
INSERT INTO orders VALUES (3, 3, 3, 3);
