-- Rows that triggers change and write, in the order in which they happen.
-- servers: mysql9 mariadb11 mariadb10 mysql56
CREATE TABLE orders (id INT PRIMARY KEY, total INT, changes INT NOT NULL DEFAULT 0);
CREATE TABLE audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(40));
CREATE TRIGGER counted BEFORE UPDATE ON orders FOR EACH ROW SET NEW.changes = OLD.changes + 1;
CREATE TRIGGER noted AFTER UPDATE ON orders FOR EACH ROW INSERT INTO audit (what) VALUES (CONCAT('order ', NEW.id, ': ', NEW.total));
INSERT INTO orders (id, total) VALUES (1, 10), (2, 20);
UPDATE orders SET total = total * 2;
START TRANSACTION;
UPDATE orders SET total = 1 WHERE id = 1;
ROLLBACK;
DROP TRIGGER noted;
UPDATE orders SET total = 5 WHERE id = 2;
