#!/usr/bin/env bash
# All tests, in two processes side by side: those with Spark one after the other, and those without it beside them, since
# waiting for Spark leaves a core idle. Each process starts the database servers that it needs. Arguments go to both. What the second process
# says comes when the first has ended. docs/decisions/0002 tells why not more.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
log=$(mktemp)
shared=(tests/integration tests/nemesis tests/fault/test_kills.py)
"$python" -m pytest tests "${shared[@]/#/--ignore=}" --ignore=tests/fault/test_orphans.py --ignore=tests/soak -p no:cacheprovider --durations=10 "$@" >"$log" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; rm -f "$log"' EXIT
echo "== pytest ${shared[*]} (the others run beside it)"
"$python" -m pytest "${shared[@]}" --durations=15 "$@"
code=$?
echo '== pytest: the others'
wait "$beside"
beside_code=$?
cat "$log"
# 5: the arguments chose no test in one of them.
[[ $beside_code == 5 && $code == 0 ]] && beside_code=0
[[ $code == 5 && $beside_code == 0 ]] && code=0
exit $((code != 0 ? code : beside_code))
