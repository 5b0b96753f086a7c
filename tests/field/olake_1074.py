"""MEDIUMINT UNSIGNED fills three bytes. A reader that extends their sign shows large values as negative ones."""

from tests.field.case import Case

CASE = Case(
    report="datazip-inc/olake#1074",
    problem="An unsigned MEDIUMINT above 8388607 arrived as a negative number.",
    statements=(
        (
            "CREATE TABLE counters (id MEDIUMINT UNSIGNED PRIMARY KEY, medium MEDIUMINT UNSIGNED,"
            " tiny TINYINT UNSIGNED, small SMALLINT UNSIGNED, normal INT UNSIGNED, big BIGINT UNSIGNED)"
        ),
        "INSERT INTO counters VALUES (1, 8388607, 127, 32767, 2147483647, 9223372036854775807)",
        "INSERT INTO counters VALUES (8388608, 8388608, 128, 32768, 2147483648, 9223372036854775808)",
        "INSERT INTO counters VALUES (16777215, 16777215, 255, 65535, 4294967295, 18446744073709551615)",
        "INSERT INTO counters VALUES (16777214, 0, 0, 0, 0, 0)",
        "UPDATE counters SET medium = medium + 1, tiny = tiny + 1 WHERE id = 1",
        "UPDATE counters SET id = 9000000 WHERE id = 8388608",
        "DELETE FROM counters WHERE id = 16777214",
    ),
    rows={
        "counters": [
            (1, 8388608, 128, 32767, 2147483647, 9223372036854775807),
            (9000000, 8388608, 128, 32768, 2147483648, 9223372036854775808),
            (16777215, 16777215, 255, 65535, 4294967295, 18446744073709551615),
        ],
    },
)
