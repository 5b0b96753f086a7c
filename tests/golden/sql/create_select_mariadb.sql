-- CREATE TABLE … AS SELECT on MariaDB: the statement, and then a transaction with the rows.
-- servers: mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY);
INSERT INTO t VALUES (2), (5);
CREATE TABLE filled (PRIMARY KEY (id)) AS SELECT id, id * 2 AS twice FROM t;
