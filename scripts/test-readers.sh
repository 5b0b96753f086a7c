#!/usr/bin/env bash
# Lets every reader of Delta read a table of every feature, and compares with the kept results (tests/readers). DuckDB and
# Polars live in an environment of their own, .venv-readers, which `make clean` removes. READERS_WRITE=1 keeps the results
# and writes docs/reference/readers.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
venv=.venv-readers
wanted=$(sha256sum scripts/test-readers.sh | cut -d' ' -f1)
if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$wanted" ]; then
  say "Making $venv"
  .venv/bin/python -m venv --clear "$venv"
  VIRTUAL_ENV=$PWD/$venv .venv/bin/uv pip install -q --no-config \
    duckdb==1.5.5 duckdb-extensions==1.5.5 duckdb-extension-delta==1.5.5 polars==2.1.0 deltalake==1.6.6 pyarrow==26.0.1 pytz
  printf '%s\n' "$wanted" >"$venv/.installed"
fi
TOWPATH_READERS_PYTHON=$PWD/$venv/bin/python TOWPATH_READERS_WRITE=${READERS_WRITE:-} \
  .venv/bin/python -m pytest tests/integration/test_readers.py -q "$@"
