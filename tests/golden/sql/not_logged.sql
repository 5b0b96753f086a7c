-- Changes that a session keeps out of the binlog, and temporary tables.
-- servers: mysql9 mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY);
SET sql_log_bin = 0;
INSERT INTO t VALUES (1);
SET sql_log_bin = 1;
INSERT INTO t VALUES (2);
CREATE TEMPORARY TABLE scratch (id INT PRIMARY KEY);
INSERT INTO scratch VALUES (5), (6);
INSERT INTO t SELECT id FROM scratch;
DROP TEMPORARY TABLE scratch;
