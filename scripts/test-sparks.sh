#!/usr/bin/env bash
# Tests with Spark on each pair of Spark and Delta that was tried, other than that of .venv (TRIED in
# cdc/lake/runtime/jars.py). Each pair has a folder of its own (.venv-spark-4.1.4, …) with these two packages, which
# `make clean` removes; all else comes from .venv. SPARKS="4.1.3=4.3.1" names other pairs. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
tests=(tests/unit/lake/runtime/test_private_pyspark.py tests/integration/test_{apply,types_in_delta,schema_changes,deletion_vectors,row_replacement,layout,snapshot,verify}.py)
others='from cdc.lake.runtime.jars import TRIED; print(*(f"{spark}={delta}" for spark, delta in TRIED[1:]))'
code=0
tried=()
for pair in ${SPARKS:-$(.venv/bin/python -c "$others")}; do
  spark=${pair%%=*} delta=${pair#*=}
  folder=$PWD/.venv-spark-$spark
  if [ "$(cat "$folder/.installed" 2>/dev/null)" != "$pair" ]; then
    say "Installing PySpark $spark and delta-spark $delta"
    rm -rf "$folder"
    VIRTUAL_ENV=$PWD/.venv .venv/bin/uv pip install -q --no-config --no-deps --target "$folder" "pyspark==$spark" "delta-spark==$delta" &&
      printf '%s\n' "$pair" >"$folder/.installed" || { code=1; tried+=("$pair: not installed"); continue; }
  fi
  say "Tests on Spark $spark with Delta $delta"
  on_pair() { tried_on "Spark $spark with Delta $delta$1" env PYTHONPATH="$folder:$PWD" .venv/bin/python -m pytest -q -p no:cacheprovider "${@:2}"; }
  on_pair '' "${tests[@]}" -m 'not long' "$@"
  [ $# != 0 ] || on_pair ', a Connect server' tests/integration/test_connect_server.py -m ''
done
printf '%s\n' "${tried[@]}"
exit "$code"
