-- Keys that move: to a free key, in a chain, and swapped by way of a third key; a key of two columns; no key.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(10));
CREATE TABLE pairs (a INT, b VARCHAR(10), v INT, PRIMARY KEY (b, a));
CREATE TABLE keyless (a INT, b INT);
INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three');
UPDATE t SET id = 10 WHERE id = 1;
UPDATE t SET id = id + 1 WHERE id IN (2, 3) ORDER BY id DESC;
START TRANSACTION;
UPDATE t SET id = -1 WHERE id = 3;
UPDATE t SET id = 3 WHERE id = 4;
UPDATE t SET id = 4 WHERE id = -1;
COMMIT;
INSERT INTO pairs VALUES (1, 'x', 1), (2, 'x', 2);
UPDATE pairs SET b = 'y', v = v + 10 WHERE a = 1;
INSERT INTO keyless VALUES (1, 1), (1, 1), (NULL, 2);
UPDATE keyless SET b = 3 WHERE a = 1 LIMIT 1;
DELETE FROM keyless WHERE a IS NULL;
