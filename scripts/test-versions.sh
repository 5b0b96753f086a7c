#!/usr/bin/env bash
# Existing tests with older versions of the servers in the place of those that they name: MySQL 5.7 and 8.0, MariaDB 10.5
# and 11.4 (cdc/testing/servers/kinds.py). Tests leave out what a version does not have, and say so (tests/support/versions.py).
# As root, also a random history on each of them. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
code=0
tried=()
fetch() { .venv/bin/python -m cdc.testing.servers fetch mysql57 mysql8012 mysql80 mariadb105 mariadb114; }

# Pytest's code 5 (the arguments chose no test) is success.
some() { "$@" || [ $? = 5 ]; }

# on WHAT STANDINS ARGUMENT…: the tests with these stand-ins.
on() {
  local what=$1 standins=$2; shift 2
  say "$what ($standins)"
  tried_on "$what" some env TOWPATH_SERVER_STANDINS="$standins" .venv/bin/python -m pytest -m 'not long' --timeout 600 -q -rs -p no:cacheprovider "$@" "${arguments[@]}"
}

arguments=("$@")
fetch || fail 'the servers cannot be fetched'
all=mysql9=mysql80,mysql56=mysql57,mariadb11=mariadb114,mariadb10=mariadb105
servers=tests/servers
on 'MySQL 8.0.33 and 5.7, MariaDB 11.4 and 10.5' $all $servers/{source,decode,sql,verify,cli,capture}
# Its table maps are others than those of later versions.
on 'MySQL 8.0.12' mysql9=mysql8012 $servers/{decode,verify,capture} $servers/source/test_*.py $servers/source/snapshot/test_binary_form.py -k 'not mariadb and not mysql56'
# In place of MariaDB 10.11 it has no matrix of types, which is a long test there.
on 'MariaDB 10.5, all types' mariadb11=mariadb105 $servers/decode/test_type_matrix.py $servers/verify $servers/capture/test_golden_sql.py -k mariadb11
on 'MySQL 8.0.33 through Spark into Delta' mysql9=mysql80 tests/integration/test_types_in_delta.py
# On the servers that they name, too: the workload is random.
for standins in '' $all; do
  TOWPATH_FIRST_LOAD_SEEDS=20 on 'statements while the first snapshot is taken' "$standins" \
    tests/integration/test_first_load.py -m ''
done
if [ "$(id -u)" = 0 ]; then
  on 'random histories' $all tests/soak/histories -m long
else
  tried+=('random histories: not run, they need root')
fi
printf '%s\n' "${tried[@]}"
exit "$code"
