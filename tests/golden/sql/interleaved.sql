-- Two sessions whose transactions overlap: they are stored in the order of their commits.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE t (id INT PRIMARY KEY, who VARCHAR(10));
START TRANSACTION;
INSERT INTO t VALUES (1, 'first');
-- session: second
START TRANSACTION;
INSERT INTO t VALUES (2, 'second');
-- session: first
INSERT INTO t VALUES (3, 'first');
-- session: second
COMMIT;
-- session: third
INSERT INTO t VALUES (4, 'third');
-- session: first
COMMIT;
