-- CREATE TABLE … AS SELECT: one transaction with the statement and the rows.
-- servers: mysql9
-- needs: CREATE TABLE SELECT
CREATE TABLE t (id INT PRIMARY KEY);
INSERT INTO t VALUES (2), (5);
CREATE TABLE filled (PRIMARY KEY (id)) AS SELECT id, id * 2 AS twice FROM t;
