"""A geometry of zero bytes, which INSERT IGNORE leaves in a NOT NULL column that it does not name."""

import struct

from tests.field.case import Case

CASE = Case(
    report="PeerDB-io/peerdb#4715",
    problem="A geometry of zero bytes could not be converted, and replication of its table failed.",
    statements=(
        "CREATE TABLE places (id INT PRIMARY KEY, spot GEOMETRY NOT NULL, name VARCHAR(20))",
        "INSERT INTO places VALUES (1, ST_GeomFromText('POINT(1 2)'), 'first')",
        "INSERT IGNORE INTO places (id, name) VALUES (2, 'empty'), (3, 'mended')",
        "UPDATE places SET name = 'still empty' WHERE id = 2",
        "UPDATE places SET spot = ST_GeomFromText('POINT(0 0)') WHERE id = 3",
    ),
    rows={
        "places": [
            (1, struct.pack("<IBIdd", 0, 1, 1, 1.0, 2.0), "first"),
            (2, b"", "still empty"),
            (3, struct.pack("<IBIdd", 0, 1, 1, 0.0, 0.0), "mended"),
        ],
    },
    servers=("mariadb11",),
)
