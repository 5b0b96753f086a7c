-- Transactions with tagged GTIDs, with automatic and with given numbers, between others.
-- servers: mysql9
-- needs: tagged GTIDs
CREATE TABLE t (id INT PRIMARY KEY);
SET gtid_next = 'AUTOMATIC:golden';
INSERT INTO t VALUES (1);
INSERT INTO t VALUES (2);
SET gtid_next = 'AUTOMATIC';
INSERT INTO t VALUES (3);
SET gtid_next = 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:golden:7';
DELETE FROM t WHERE id = 1;
SET gtid_next = 'AUTOMATIC';
