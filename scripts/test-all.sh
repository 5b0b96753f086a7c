#!/usr/bin/env bash
# What `make test` runs, in stages: each prints its seconds, and a table at the end has them all. A failed check (lint,
# documentation, quick tests) ends the run before the long tests. Arguments go to pytest.
#
# Stages that `together` joins run side by side: mypy beside the quick tests; the tests with Spark, those that kill and
# break, and all others. Waiting for Spark, for servers and for disks leaves the cores idle otherwise. What the second
# and third print comes when the first has ended. Tests that share servers or a Spark session run one after the other in
# one process (docs/decisions/0002).
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
folder=$(mktemp -d)
began=$SECONDS
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$folder"' EXIT
: >"$folder/stages"

# stage NAME COMMAND…: run it, and note its seconds and its exit code. Pytest's code 5 (the arguments chose no test) is success.
stage() {
  local name=$1 start=$SECONDS code=0
  shift
  printf '\n== %s\n' "$name"
  "$@" || code=$?
  printf '%s\t%s\t%s\n' "$name" $((SECONDS - start)) "$code" >>"$folder/stages"
  printf '== %s: %s s\n' "$name" $((SECONDS - start))
  [[ $code == 0 || $code == 5 ]]
}

# together FUNCTION…: groups of stages side by side.
together() {
  local first=$1 name code=0 pids=()
  shift
  for name in "$@"; do
    "$name" >"$folder/$name" 2>&1 &
    pids+=($!)
  done
  "$first" || code=$?
  for name in "$@"; do
    wait "${pids[0]}" || code=$?
    pids=("${pids[@]:1}")
    cat "$folder/$name"
  done
  return "$code"
}

summary() {
  printf '\n== stages\n'
  awk -F '\t' '{ printf "%-34s %5d s  %s\n", $1, $2, $3 == 0 ? "passed" : $3 == 5 ? "no tests" : "FAILED (" $3 ")" }' "$folder/stages"
  printf '%-34s %5d s\n' 'all, from start to end' $((SECONDS - began))
}
finish() {
  summary
  exit "$1"
}

quick() {
  stage 'quick tests' "$bin/python" -m pytest tests/unit -m 'not long' -n "$(nproc)" --dist worksteal -q "${arguments[@]}"
}
types() { stage mypy "$bin/mypy"; }
checks() {
  stage 'ruff check' "$bin/ruff" check . &&
    stage 'ruff format' "$bin/ruff" format --check . &&
    stage 'import contracts' imports &&
    stage documentation make docs
}
imports() { "$bin/lint-imports" --no-cache | grep -E 'KEPT|BROKEN|Contracts:|->'; }

fetch() { scripts/need-npm.sh && "$bin/python" -m cdc.testing.servers fetch; }

# Long tests repeat what others show, on another server or more often: they come with `make test-long`.
pytest() { "$bin/python" -m pytest --durations=15 -m 'not long' "$@" "${arguments[@]}"; }
spark=(tests/integration tests/field)
# The long tests with Spark that need no session of others: with the faults, so that the three take equally long.
moved=(tests/integration/test_adoption.py tests/integration/test_as_of.py tests/integration/test_bad_files.py
  tests/integration/test_connect_server.py tests/integration/test_first_load.py tests/integration/test_layout.py
  tests/integration/test_letter_case.py tests/integration/test_small_batches.py
  tests/integration/test_snapshot.py tests/integration/test_snapshot_files.py tests/integration/test_submitted_jobs.py
  tests/integration/test_system_versioned.py tests/integration/test_types_in_delta.py tests/integration/test_verify.py
  tests/integration/test_verify_keys.py tests/integration/test_verify_types.py)
faults=(tests/nemesis tests/slow tests/fault/test_kills.py tests/fault/test_snapshot_kills.py tests/fault/test_statement_kills.py
  tests/fault/test_store_kills.py tests/fault/test_stream_kills.py tests/model tests/servers/cli tests/servers/streaming
  "${moved[@]}")
# The orphans of real processes take minutes: they come with `make test-kill`; test_apply.py has such cases in one process.
elsewhere=(tests/unit tests/soak tests/dags tests/fault/test_orphans.py "${spark[@]}" "${faults[@]}")
# The tests of DAGs come behind those with Spark, in a process of their own: Airflow's settings are for them alone.
with_spark() {
  local code=0
  stage 'tests with Spark' pytest "${spark[@]}" "${moved[@]/#/--ignore=}" || code=1
  stage 'DAGs and operators' pytest tests/dags -p no:cacheprovider || code=1
  return "$code"
}
with_faults() { stage 'faults, kills, types' pytest "${faults[@]}" -p no:cacheprovider; }
without_spark() { stage 'tests without Spark' pytest tests "${elsewhere[@]/#/--ignore=}" -p no:cacheprovider; }

arguments=("$@")
stage install scripts/install.sh || finish 1
checks || finish 1
stage 'servers for the tests' fetch || finish 1
together quick types || finish 1
together with_spark with_faults without_spark || finish 1
grep -qP '^(quick tests|tests with|DAGs|faults).*\t0$' "$folder/stages" || finish 5
finish 0
