-- Types of MariaDB alone.
-- servers: mariadb11 mariadb10
-- needs: UUID, INET4
CREATE TABLE t (id UUID PRIMARY KEY, four INET4, six INET6, document JSON);
INSERT INTO t VALUES ('123e4567-e89b-12d3-a456-426614174000', '10.0.0.1', '2001:db8::1', '{"a":  1}');
INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000000', '0.0.0.0', '::', NULL);
UPDATE t SET four = '255.255.255.255', six = '::ffff:1.2.3.4' WHERE six = '::';
