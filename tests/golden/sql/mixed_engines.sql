-- A transaction of both kinds of tables, which is rolled back: the rows of the one without transactions stay.
-- servers: mariadb11 mariadb10
CREATE TABLE safe (id INT PRIMARY KEY) ENGINE = InnoDB;
CREATE TABLE loose (id INT PRIMARY KEY) ENGINE = Aria;
START TRANSACTION;
INSERT INTO safe VALUES (1);
INSERT INTO loose VALUES (1);
INSERT INTO safe VALUES (2);
ROLLBACK;
START TRANSACTION;
INSERT INTO safe VALUES (3);
INSERT INTO loose VALUES (3);
COMMIT;
