-- Dates and times: fractions of seconds, negative times, the first and the last ones, and dates that do not exist.
-- servers: mysql9 mariadb11 mariadb10 mysql56
SET time_zone = '+02:00', sql_mode = 'ALLOW_INVALID_DATES';
CREATE TABLE t (id INT PRIMARY KEY, d DATE, dt DATETIME(3), ts TIMESTAMP(6) NULL, ti TIME(2), t0 TIME);
INSERT INTO t VALUES (1, '1000-01-01', '1000-01-01 00:00:00', '1970-01-01 02:00:01', '-838:59:59', '-00:00:01');
INSERT INTO t VALUES (2, '9999-12-31', '9999-12-31 23:59:59.999', '2038-01-19 05:14:07.999999', '838:59:59', '12:34:56');
INSERT INTO t VALUES (3, '2024-02-29', '2024-02-29 12:00:00.5', '2024-07-01 00:00:00.000001', '-12:34:56.79', '-838:59:59');
INSERT INTO t VALUES (4, '2023-02-31', '2023-00-00 00:00:00', '0000-00-00 00:00:00', '00:00:00.01', '00:00:00');
INSERT INTO t VALUES (5, '0000-00-00', '0000-00-00 00:00:00', NULL, '-00:00:00.01', NULL);
