-- REPLACE: of a new key, of an existing one, and of two rows at once by two unique keys.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE t (id INT PRIMARY KEY, code VARCHAR(10) UNIQUE, n INT);
REPLACE INTO t VALUES (1, 'a', 1);
REPLACE INTO t VALUES (1, 'a', 2);
INSERT INTO t VALUES (2, 'b', 1);
REPLACE INTO t VALUES (1, 'b', 3);
REPLACE INTO t VALUES (5, 'e', 1), (1, 'f', 4);
