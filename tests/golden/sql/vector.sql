-- Vectors of MySQL 9, and geometries.
-- servers: mysql9
-- needs: VECTOR
CREATE TABLE t (id INT PRIMARY KEY, v VECTOR(3), p POINT NULL SRID 4326);
INSERT INTO t VALUES (1, TO_VECTOR('[1, -2.5, 0]'), ST_SRID(POINT(1, 2), 4326));
INSERT INTO t VALUES (2, NULL, NULL);
UPDATE t SET v = TO_VECTOR('[0.1, 0.2, 0.3]') WHERE id = 2;
