-- Statements that MariaDB writes when they begin and again when they end: a failed one only begins and is taken back.
-- servers: mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT);
INSERT INTO t VALUES (1, 10, 20), (2, 10, 20);
-- session: phases
SET SESSION binlog_alter_two_phase = 1;
ALTER TABLE t CHANGE a b INT, CHANGE b a INT;
ALTER IGNORE TABLE t ADD COLUMN c INT DEFAULT 5;
INSERT INTO t VALUES (3, 11, 21, 31);
ALTER TABLE t RENAME TO u;
ALTER TABLE u DROP COLUMN c;
INSERT INTO u VALUES (4, 12, 22);
