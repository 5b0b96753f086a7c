-- NULL, the empty text, zero and the defaults, in many columns: each byte of a row's bitmap of NULLs counts.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(5), c DATE, d DECIMAL(4,1), e BLOB, f DOUBLE, g ENUM('x','y'), h SET('p','q'), i BIT(3), j TEXT NOT NULL);
INSERT INTO t VALUES (1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '');
INSERT INTO t VALUES (2, 0, '', '2000-01-01', 0, '', 0, 'x', '', 0, 'NULL');
UPDATE t SET a = 1, i = 5, e = NULL WHERE id = 2;
UPDATE t SET b = 'b', g = 'y', h = 'p,q' WHERE id = 1;
UPDATE t SET b = NULL WHERE id = 1;
