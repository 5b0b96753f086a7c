-- Generated columns, virtual and stored, an invisible column, and a default that is an expression.
-- servers: mysql9
-- needs: invisible columns
CREATE TABLE t (id INT PRIMARY KEY, v INT, twice INT AS (v * 2) STORED, half DECIMAL(8,1) AS (v / 2) VIRTUAL, hidden INT INVISIBLE DEFAULT 5, label VARCHAR(20) DEFAULT (CONCAT('row ', v)));
INSERT INTO t (id, v) VALUES (1, 3);
INSERT INTO t (id, v, hidden, label) VALUES (2, NULL, 6, 'own');
UPDATE t SET v = 5 WHERE id = 1;
DELETE FROM t WHERE id = 2;
