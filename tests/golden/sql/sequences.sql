-- Sequences of MariaDB are no tables, though their state is written as rows, and RENAME and DROP TABLE take them.
-- servers: mariadb11 mariadb10
CREATE SEQUENCE numbers;
CREATE TABLE t (id INT PRIMARY KEY DEFAULT NEXTVAL(numbers), v INT);
INSERT INTO t (v) VALUES (10), (20);
DO SETVAL(numbers, 100);
INSERT INTO t (v) VALUES (30);
RENAME TABLE numbers TO others;
ALTER TABLE others RENAME numbers;
ALTER SEQUENCE numbers RESTART 5000;
INSERT INTO t (v) VALUES (40);
CREATE TABLE dumped (next_not_cached_value bigint(21) NOT NULL, minimum_value bigint(21) NOT NULL,
  maximum_value bigint(21) NOT NULL, start_value bigint(21) NOT NULL, increment bigint(21) NOT NULL,
  cache_size bigint(21) unsigned NOT NULL, cycle_option tinyint(1) unsigned NOT NULL, cycle_count bigint(21) NOT NULL)
  ENGINE=InnoDB SEQUENCE=1;
DROP TABLE dumped;
CREATE TABLE dumped (id INT PRIMARY KEY);
INSERT INTO dumped VALUES (1);
