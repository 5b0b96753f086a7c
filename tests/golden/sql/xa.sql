-- XA transactions come when they are committed, in the order of their XA COMMITs, and never when they are rolled back.
-- servers: mysql9 mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10));
-- session: a
XA START 'golden-a';
INSERT INTO t VALUES (1, 'a');
INSERT INTO t VALUES (2, 'a');
XA END 'golden-a';
XA PREPARE 'golden-a';
-- session: b
XA START 'golden-b';
INSERT INTO t VALUES (3, 'b');
XA END 'golden-b';
XA PREPARE 'golden-b';
-- session: plain
INSERT INTO t VALUES (4, 'plain');
-- session: b
XA COMMIT 'golden-b';
-- session: c
XA START 'golden-c';
INSERT INTO t VALUES (5, 'never');
XA END 'golden-c';
XA PREPARE 'golden-c';
XA ROLLBACK 'golden-c';
XA START 'golden-d';
UPDATE t SET v = 'd' WHERE id = 4;
XA END 'golden-d';
XA COMMIT 'golden-d' ONE PHASE;
-- session: a
XA COMMIT 'golden-a';
