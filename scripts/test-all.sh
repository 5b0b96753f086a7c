#!/usr/bin/env bash
# What `make test` runs, in stages: each prints its seconds, and a table at the end has them all. A failed check (lint,
# documentation, quick tests) ends the run before the long tests. Arguments go to pytest.
#
# Stages joined by `both` run side by side: mypy beside the other checks, and the tests with Spark beside all others,
# since waiting for Spark leaves a core idle. What the second one of a pair prints comes when the first has ended. Tests
# that share servers or a Spark session run one after the other in one process (docs/decisions/0002).
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

# both FUNCTION FUNCTION: two groups of stages side by side.
both() {
  local first=0 second=0
  "$2" >"$folder/second" 2>&1 &
  local beside=$!
  "$1" || first=$?
  wait "$beside" || second=$?
  cat "$folder/second"
  [[ $first == 0 && $second == 0 ]]
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

types() { stage mypy "$bin/mypy"; }
checks() {
  stage 'ruff check' "$bin/ruff" check . &&
    stage 'ruff format' "$bin/ruff" format --check . &&
    stage 'import contracts' imports &&
    stage documentation make docs
}
imports() { "$bin/lint-imports" --no-cache | grep -E 'KEPT|BROKEN|Contracts:|->'; }

fetch() { scripts/need-npm.sh && "$bin/python" -m cdc.testing.servers fetch; }

spark=(tests/integration tests/nemesis tests/fault/test_kills.py)
# The orphans of real processes take minutes: they come with `make test-kill`; test_apply.py has such cases in one process.
elsewhere=(tests/unit tests/soak tests/fault/test_orphans.py)
with_spark() { stage 'tests with Spark' "$bin/python" -m pytest "${spark[@]}" --durations=15 "${arguments[@]}"; }
without_spark() {
  stage 'tests without Spark' "$bin/python" -m pytest tests "${spark[@]/#/--ignore=}" "${elsewhere[@]/#/--ignore=}" \
    -p no:cacheprovider --durations=15 "${arguments[@]}"
}

arguments=("$@")
stage install scripts/install.sh || finish 1
both types checks || finish 1
stage 'servers for the tests' fetch || finish 1
stage 'quick tests' "$bin/python" -m pytest tests/unit -n "$(nproc)" -q "${arguments[@]}" || finish 1
both with_spark without_spark || finish 1
grep -P '^(quick|tests).*\t0$' -q "$folder/stages" || finish 5
finish 0
