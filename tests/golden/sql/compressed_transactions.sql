-- Transactions that MySQL compresses, between others that it does not; XA, and a transaction of many rows.
-- servers: mysql9
-- needs: compressed transactions
CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300));
INSERT INTO t VALUES (1, 'plain');
SET SESSION binlog_transaction_compression = ON;
INSERT INTO t VALUES (2, REPEAT('packed ', 20));
START TRANSACTION;
UPDATE t SET v = 'packed' WHERE id = 1;
DELETE FROM t WHERE id = 2;
COMMIT;
ALTER TABLE t ADD COLUMN n INT;
INSERT INTO t VALUES (3, 'three', 3), (4, NULL, NULL);
XA START 'golden-packed';
INSERT INTO t VALUES (5, 'xa', 5);
XA END 'golden-packed';
XA PREPARE 'golden-packed';
XA COMMIT 'golden-packed';
SET SESSION binlog_transaction_compression = OFF;
UPDATE t SET n = 0 WHERE id = 3;
