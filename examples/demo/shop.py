"""The shop: three tables, and the traffic of its customers."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pymysql
from pymysql.cursors import Cursor

TABLES: dict[str, tuple[str, ...]] = {"customers": ("id",), "products": ("sku",), "orders": ("id",)}
"""Name and primary key."""

ALTER = "ALTER TABLE orders ADD COLUMN channel VARCHAR(12) NOT NULL DEFAULT 'web' AFTER state"
"""The change of schema in the middle of the demo."""

_CREATE = (
    """CREATE TABLE customers (
        id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        name VARCHAR(80) NOT NULL,
        email VARCHAR(120) NOT NULL,
        city VARCHAR(60),
        level ENUM('new','regular','gold') NOT NULL DEFAULT 'new',
        born DATE,
        joined DATETIME(3) NOT NULL
    ) DEFAULT CHARSET utf8mb4""",
    """CREATE TABLE products (
        sku CHAR(8) NOT NULL PRIMARY KEY,
        title VARCHAR(100) NOT NULL,
        price DECIMAL(10,2) NOT NULL,
        stock INT NOT NULL,
        weight_kg DOUBLE,
        label VARBINARY(16)
    ) DEFAULT CHARSET utf8mb4""",
    """CREATE TABLE orders (
        id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
        customer_id INT UNSIGNED NOT NULL,
        sku CHAR(8) NOT NULL,
        quantity SMALLINT UNSIGNED NOT NULL,
        amount DECIMAL(12,2) NOT NULL,
        state ENUM('open','paid','sent') NOT NULL,
        note TEXT,
        changed TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)
    ) DEFAULT CHARSET utf8mb4""",
)
_FIRST = ("Ada", "Björn", "Chloé", "Dmitri", "Eun-ji", "Fatima", "Grace", "Håkon", "Ines", "Jürgen", "Kenji", "Łucja")
_LAST = ("Novák", "O'Brien", "Þórsson", "García", "李", "Müller", "Sato", "Ørsted", "Papadopoulou", "Smith")
_CITY = ("Zürich", "Kraków", "São Paulo", "東京", "Oslo", "Lyon", None)
_THINGS = ("lamp", "kettle", "chair", "scarf", "bicycle bell", "notebook", "teapot ☕", "towel")
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Account:
    """Address and login of the database server."""

    flavor: str
    host: str
    port: int
    user: str
    password: str

    def url(self) -> str:
        """Returns the URL without the password."""
        return f"{self.flavor}://{self.user}@{self.host}:{self.port}"

    def connect(self, database: str | None = None) -> pymysql.Connection[Cursor]:
        """Opens a connection with the time zone UTC."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password,
            database=database,
            charset="utf8mb4",
            autocommit=False,
            init_command="SET time_zone = '+00:00'",
        )


class Shop:
    """The database ``name`` and its traffic."""

    def __init__(self, account: Account, name: str) -> None:
        self.account, self.name = account, name
        self.transactions = 0
        """Transactions that the traffic has committed so far."""
        self.error: Exception | None = None
        """The error that ended the traffic."""
        self._random = random.Random(20261121)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def create(self) -> None:
        """Creates the database with empty tables."""
        with self.account.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{self.name}` DEFAULT CHARSET utf8mb4")
            connection.select_db(self.name)
            for statement in _CREATE:
                cursor.execute(statement)

    def fill(self, customers: int = 2000, products: int = 200, orders: int = 5000) -> None:
        """Inserts the initial rows."""
        with self.account.connect(self.name) as connection, connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO products VALUES (%s,%s,%s,%s,%s,%s)", [self._product(i) for i in range(products)]
            )
            cursor.executemany(
                "INSERT INTO customers (name,email,city,level,born,joined) VALUES (%s,%s,%s,%s,%s,%s)",
                [self._customer() for _ in range(customers)],
            )
            connection.commit()
            for _ in range(orders // 500):
                cursor.executemany(
                    "INSERT INTO orders (customer_id,sku,quantity,amount,state,note) VALUES (%s,%s,%s,%s,%s,%s)",
                    [self._order(customers, products) for _ in range(500)],
                )
                connection.commit()
        self._customers, self._products = customers, products

    def alter(self) -> None:
        """Alters a table under traffic."""
        with self.account.connect(self.name) as connection, connection.cursor() as cursor:
            cursor.execute(ALTER)

    def drop(self) -> None:
        """Drops the database."""
        with self.account.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS `{self.name}`")

    def open(self, pause_s: float = 0.04) -> None:
        """Starts the traffic: small transactions, one every ``pause_s``."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._trade, args=(pause_s,), name="demo-traffic", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the traffic. Raises the error that ended it before."""
        self.halt()
        if self.error is not None:
            raise self.error

    def halt(self) -> None:
        """Ends the traffic, even if it has failed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _trade(self, pause_s: float) -> None:
        try:
            with self.account.connect(self.name) as connection, connection.cursor() as cursor:
                while not self._stop.wait(pause_s):
                    self._transaction(cursor)
                    connection.commit()
                    self.transactions += 1
        except pymysql.MySQLError as error:
            self.error = error

    def _transaction(self, cursor: Cursor) -> None:
        chance = self._random.random()
        sku = f"SKU{self._random.randrange(self._products):05}"
        if chance < 0.55:
            order = self._order(self._customers, self._products)
            cursor.execute(
                "INSERT INTO orders (customer_id,sku,quantity,amount,state,note) VALUES (%s,%s,%s,%s,%s,%s)", order
            )
            cursor.execute("UPDATE products SET stock = stock - %s WHERE sku = %s", (order[2], order[1]))
        elif chance < 0.75:
            cursor.execute(
                "UPDATE orders SET state = 'paid', changed = NOW(6) WHERE state = 'open' ORDER BY id LIMIT 3"
            )
        elif chance < 0.85:
            cursor.execute("DELETE FROM orders WHERE state = 'paid' ORDER BY id LIMIT 2")
        elif chance < 0.95:
            cursor.execute(
                "INSERT INTO customers (name,email,city,level,born,joined) VALUES (%s,%s,%s,%s,%s,%s)", self._customer()
            )
            cursor.execute(
                "UPDATE customers SET level = 'gold' WHERE id = %s", (self._random.randrange(1, self._customers),)
            )
        elif chance < 0.98:
            cursor.execute("UPDATE products SET price = price * 1.01 WHERE sku = %s", (sku,))
        else:
            new = f"S{self._random.randrange(10**7):07}"
            cursor.execute("UPDATE IGNORE products SET sku = %s WHERE sku = %s", (new, sku))

    def _product(self, number: int) -> tuple[object, ...]:
        pick = self._random
        price = Decimal(pick.randrange(100, 50000)) / 100
        weight = None if pick.random() < 0.1 else pick.random() * 20
        return f"SKU{number:05}", f"{pick.choice(_THINGS)} no. {number}", price, 1000, weight, pick.randbytes(8)

    def _customer(self) -> tuple[object, ...]:
        pick = self._random
        first, last = pick.choice(_FIRST), pick.choice(_LAST)
        born = None if pick.random() < 0.2 else date(1940, 1, 1) + timedelta(days=pick.randrange(24000))
        joined = (_START + timedelta(milliseconds=pick.randrange(10**10))).replace(tzinfo=None)
        email = f"customer{pick.randrange(10**9)}@shop.example"
        return f"{first} {last}", email, pick.choice(_CITY), pick.choice(("new", "regular")), born, joined

    def _order(self, customers: int, products: int) -> tuple[object, ...]:
        pick = self._random
        quantity = pick.randrange(1, 5)
        amount = Decimal(pick.randrange(100, 200000)) / 100
        note = None if pick.random() < 0.7 else f"Please ring twice — {pick.choice(_FIRST)}"
        state = pick.choice(("open", "open", "paid", "sent"))
        return pick.randrange(1, customers), f"SKU{pick.randrange(products):05}", quantity, amount, state, note
