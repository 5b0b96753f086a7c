#!/usr/bin/env bash
# The tests of the DAGs on each minor version of Airflow 3 that is supported, in a virtual environment of its own
# (.venv-airflow-3.0.6, …), which `make clean` removes. AIRFLOWS="3.1.7=2026-02-05" names others, each with a day:
# Airflow's dependencies are installed as they were on that day, as its constraint files do; Towpath's are the newest.
# Tests with Spark are left out: they need no other Airflow. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
newest=$(.venv/bin/python -c 'from importlib.metadata import version; print(version("apache-airflow"))')
today=$(date -u -d tomorrow +%F)
ours=(cryptography deltalake llvmlite mysql-replication numba numpy prometheus-client pyarrow pymysql structlog zstandard)
mapfile -t core < <(.venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")')
code=0
tried=()
for one in ${AIRFLOWS:-3.0.6=2025-10-01 3.1.8=2026-04-15 3.2.2=2026-08-01 $newest=$today}; do
  version=${one%%=*} day=${one#*=}
  venv=.venv-airflow-$version
  wanted="$one $(sha256sum pyproject.toml scripts/test-airflows.sh | sha256sum | cut -d' ' -f1)"
  if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]; then
    say "Making $venv"
    overrides=()
    providers=()
    # Operators of these submit jobs in tests/dags/provider_operators.py.
    [ "$version" != "$newest" ] || for name in amazon apache-spark cncf-kubernetes databricks google; do
      providers+=("apache-airflow-providers-$name")
    done
    for package in "${ours[@]}"; do overrides+=(--exclude-newer-package "$package=$today"); done
    .venv/bin/python -m venv --clear "$venv" && VIRTUAL_ENV=$PWD/$venv .venv/bin/uv pip install -q --no-config --exclude-newer "$day" "${overrides[@]}" \
      "apache-airflow==$version" apache-airflow-providers-standard "${providers[@]}" deltalake httpx hypothesis jsonschema \
      prometheus-client psutil pytest pytest-timeout statsd hatchling editables "${core[@]}" &&
      VIRTUAL_ENV=$PWD/$venv .venv/bin/uv pip install -q --no-config --no-deps --no-build-isolation -e . &&
      printf '%s\n' "$wanted" >"$venv/.installed" || { code=1; tried+=("$version: not installed"); continue; }
  fi
  say "The tests of the DAGs on Airflow $version"
  files=test_*.py
  [ "$version" != "$newest" ] || files+=" provider_operators.py"
  tried_on "$version" "$venv/bin/python" -m pytest tests/dags -o python_files="$files" --ignore-glob 'tests/dags/test_real_*' -q -p no:cacheprovider "$@"
done
printf '%s\n' "${tried[@]}"
exit "$code"
