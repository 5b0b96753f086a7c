-- JSON documents, and partial updates of them (PARTIAL_JSON), of several places at once.
-- servers: mysql9
CREATE TABLE t (id INT PRIMARY KEY, d JSON, other JSON);
INSERT INTO t VALUES (1, '{"b": 1, "a": [true, null, 1.5, "x"], "long": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}', 'null');
INSERT INTO t VALUES (2, '[18446744073709551615, -9223372036854775808, 1e300, "é☃", {"": {}}]', NULL);
INSERT INTO t VALUES (3, JSON_OBJECT('date', CAST('2024-02-29' AS DATE), 'time', CAST('-12:34:56.789' AS TIME(3)), 'dec', CAST(1.10 AS DECIMAL(5,2)), 'bin', CAST(x'00ff' AS BINARY)), '1');
SET binlog_row_value_options = PARTIAL_JSON;
UPDATE t SET d = JSON_SET(d, '$.b', 2) WHERE id = 1;
UPDATE t SET d = JSON_SET(d, '$.a[1]', 'was null', '$.new', JSON_ARRAY(1, 2)), other = '{}' WHERE id = 1;
UPDATE t SET d = JSON_REMOVE(d, '$.a[0]', '$.b') WHERE id = 1;
UPDATE t SET d = JSON_ARRAY_INSERT(d, '$[1]', 'in between') WHERE id = 2;
UPDATE t SET d = NULL WHERE id = 3;
