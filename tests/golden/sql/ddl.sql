-- Changed tables between rows: each row has the columns of its moment.
-- servers: mysql9 mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(10));
INSERT INTO t VALUES (1, 'anna');
ALTER TABLE t ADD COLUMN age SMALLINT UNSIGNED NOT NULL DEFAULT 7;
INSERT INTO t VALUES (2, 'bert', 65535);
ALTER TABLE t CHANGE name full_name VARCHAR(40), ADD COLUMN first_column INT FIRST;
UPDATE t SET full_name = 'anna b', first_column = -1 WHERE id = 1;
ALTER TABLE t DROP COLUMN age;
CREATE INDEX by_name ON t (full_name);
DELETE FROM t WHERE id = 2;
ALTER TABLE t MODIFY COLUMN first_column BIGINT AFTER full_name;
INSERT INTO t VALUES (3, 'carl', 9223372036854775807);
DROP TABLE t;
CREATE TABLE t (code CHAR(3) PRIMARY KEY);
INSERT INTO t VALUES ('abc');
