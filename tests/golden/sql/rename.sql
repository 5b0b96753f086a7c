-- Tables that swap their names, as online schema changes do, and rows before and after.
-- servers: mysql9 mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY, v INT);
CREATE TABLE _t_new (id INT PRIMARY KEY, v BIGINT, more VARCHAR(10));
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO _t_new (id, v) SELECT id, v FROM t;
RENAME TABLE t TO _t_old, _t_new TO t;
INSERT INTO t VALUES (3, 3, 'new');
UPDATE _t_old SET v = 0 WHERE id = 1;
RENAME TABLE t TO swapped, _t_old TO t, swapped TO _t_old;
INSERT INTO t VALUES (4, 4);
INSERT INTO _t_old VALUES (5, 5, 'five');
