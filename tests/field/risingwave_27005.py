"""Names of tables and columns have dots, blanks, quotes, a dollar sign, and letters of other scripts."""

from tests.field.case import Case

CASE = Case(
    report="risingwavelabs/risingwave#27005",
    problem="A name with a dot is split in the wrong place, and the table is not found, or is taken for another one.",
    statements=(
        "CREATE TABLE `b.c` (id INT PRIMARY KEY, `unit.price` INT, `naïve, $ 'x' ``y``` VARCHAR(20))",
        "INSERT INTO `b.c` VALUES (1, 5, 'one'), (2, 6, 'two')",
        "CREATE TABLE `日本語 $表` (`鍵` INT PRIMARY KEY, `値;=` VARCHAR(20))",
        "INSERT INTO `日本語 $表` VALUES (1, 'いち'), (2, 'に')",
        "RENAME TABLE `b.c` TO `d.e``f`",
        "INSERT INTO `d.e``f` VALUES (3, 7, 'three')",
        "ALTER TABLE `日本語 $表` ADD COLUMN `a.b` INT DEFAULT 3",
        "UPDATE `日本語 $表` SET `値;=` = NULL WHERE `鍵` = 2",
    ),
    rows={
        "d.e`f": [(1, 5, "one"), (2, 6, "two"), (3, 7, "three")],
        "日本語 $表": [(1, "いち", 3), (2, None, 3)],
    },
)
