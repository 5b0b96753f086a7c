-- INSERT … ON DUPLICATE KEY UPDATE and INSERT IGNORE.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE t (id INT PRIMARY KEY, hits INT NOT NULL, seen VARCHAR(10));
INSERT INTO t VALUES (1, 1, 'monday') ON DUPLICATE KEY UPDATE hits = hits + 1;
INSERT INTO t VALUES (1, 1, 'tuesday') ON DUPLICATE KEY UPDATE hits = hits + 1, seen = VALUES(seen);
INSERT INTO t VALUES (1, 1, 'friday'), (2, 1, 'friday'), (1, 1, 'sunday') ON DUPLICATE KEY UPDATE hits = hits + 1;
INSERT INTO t VALUES (1, 1, 'none') ON DUPLICATE KEY UPDATE hits = hits;
INSERT IGNORE INTO t VALUES (1, 9, 'no'), (3, 3, 'yes');
