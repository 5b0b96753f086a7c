-- MariaDB renames temporary tables by RENAME TABLE, without a mark in the binlog.
-- servers: mariadb11 mariadb10
CREATE TABLE orders (id INT PRIMARY KEY);
CREATE TABLE other (id INT PRIMARY KEY);
-- session: text
SET binlog_format = MIXED;
CREATE TEMPORARY TABLE orders (id INT);
RENAME TABLE orders TO gone;
-- session: rows
INSERT INTO orders VALUES (1);
-- session: text
RENAME TABLE other TO renamed;
DROP TABLE gone;
