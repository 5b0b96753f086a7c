-- Tables without transactions: their rows stay when a transaction is rolled back, and are stored before it.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE safe (id INT PRIMARY KEY) ENGINE = InnoDB;
CREATE TABLE loose (id INT PRIMARY KEY) ENGINE = MyISAM;
INSERT INTO loose VALUES (1), (2);
START TRANSACTION;
INSERT INTO safe VALUES (1);
COMMIT;
UPDATE loose SET id = 3 WHERE id = 2;
DELETE FROM loose;
