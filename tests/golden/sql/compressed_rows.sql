-- Row events and statements that MariaDB compresses, and columns that it stores compressed.
-- servers: mariadb11 mariadb10
SET GLOBAL log_bin_compress_min_len = 10;
SET GLOBAL log_bin_compress = ON;
CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(300), c TEXT COMPRESSED, b BLOB COMPRESSED);
INSERT INTO t VALUES (1, REPEAT('packed ', 20), REPEAT('column ', 20), NULL);
UPDATE t SET v = 'short', b = REPEAT('x', 40);
ALTER TABLE t ADD COLUMN note VARCHAR(60) DEFAULT 'a long statement of DDL, which is compressed too' NULL;
DELETE FROM t;
SET GLOBAL log_bin_compress = OFF;
SET GLOBAL log_bin_compress_min_len = DEFAULT;
INSERT INTO t VALUES (2, 'plain', 'plain', 'plain', 'plain');
