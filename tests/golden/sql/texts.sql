-- Texts in their columns' character sets, bytes, ENUM and SET.
-- servers: mysql9 mariadb11 mariadb10
CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(20) CHARACTER SET latin1, b VARCHAR(20) CHARACTER SET utf8mb4, c VARCHAR(20) CHARACTER SET utf16, d CHAR(10) CHARACTER SET sjis, e TEXT CHARACTER SET utf32, f VARCHAR(20) CHARACTER SET greek);
CREATE TABLE bytes (id INT PRIMARY KEY, a BINARY(4), b VARBINARY(10), c BLOB);
CREATE TABLE members (id INT PRIMARY KEY, e ENUM('small','größer','') CHARACTER SET latin1, s SET('red','grün','blue') CHARACTER SET utf8mb4);
INSERT INTO t VALUES (1, 'naïve €', 'snow ☃ 🚋', 'utf16 ☃', 'カナ', 'utf32 é', 'αβγ');
INSERT INTO t VALUES (2, '', '', '', '', '', '');
INSERT INTO t VALUES (3, 'it''s', 'back\\slash', 'two\nlines', 'tab\t', '"', NULL);
INSERT INTO bytes VALUES (1, x'01', x'00ff', x'00'), (2, '', '', ''), (3, x'01020304', 'text', x'fffe');
INSERT INTO members VALUES (1, 'größer', 'red,blue'), (2, 'small', ''), (3, '', 'grün');
