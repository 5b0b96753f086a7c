#!/usr/bin/env bash
# Creates .venv with requirements/dev.txt and this checkout. Returns at once if it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

suitable() { # Whether this command is a Python that the lock file supports.
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}
suitable_python() {
  local name
  for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if suitable "$name"; then command -v "$name"; return; fi
  done
  return 1
}

python=$(suitable_python) || { apt_install "Python 3.11 to 3.14" python3 python3-venv; python=$(suitable_python); } ||
  fail "this machine has no Python from 3.11 to 3.14. Install one and pass it: make PYTHON=/path/to/python3"
digest=$(cat requirements/*.txt pyproject.toml scripts/install.sh | sha256sum | cut -d' ' -f1)
place="$("$python" -c 'import sys; print(sys.version.split()[0])') $PWD" # a virtual environment cannot be moved
stamp="$digest $place"
if [ -x .venv/bin/python ] && [ "$(cat .venv/.installed 2>/dev/null)" = "$stamp" ]; then exit 0; fi

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  apt_install "Python's venv module" "$version-venv"
fi
say "Making .venv with $("$python" --version) (about 150 packages, once)"
# Reuse the .venv of an interrupted run or an older lock file, but not that of another Python or folder.
if [ "$(cat .venv/.place 2>/dev/null)" != "$place" ] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
  rm -rf .venv
  "$python" -m venv .venv
  printf '%s\n' "$place" > .venv/.place
fi
rm -f .venv/.installed
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install -q --require-hashes -r requirements/uv.txt
export VIRTUAL_ENV=$PWD/.venv
quiet=-q
[ ! -t 2 ] || quiet= # show uv's progress at a terminal
if ! .venv/bin/uv pip install $quiet --require-hashes -r requirements/dev.txt; then
  say "uv could not install the packages; trying pip, which is slower"
  .venv/bin/python -m pip install -q --require-hashes -r requirements/dev.txt
fi
# hatchling is in the lock file, so building this checkout downloads nothing else.
.venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
# uv leaves compiling to the first import, and where PYTHONDONTWRITEBYTECODE is set no import keeps the result: then
# each start of cdc compiles the source of a thousand modules, which takes longer than all else it does.
for package in $(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/{numba,llvmlite,numpy,pyarrow,pydantic,pydantic_core,annotated_types,typing_inspection,typer,shellingham,annotated_doc,rich,markdown_it,linkify_it,uc_micro,mdurl,attr,structlog,pymysql,zstandard,yaml,cryptography,httpx,httpcore,anyio,h11,certifi,idna,py4j,arro3,pyspark,delta,deltalake,pandas,dateutil,pytz,pytest,_pytest,hypothesis,pygments,*.py} cdc; do
  [ ! -e "$package" ] || .venv/bin/python -m compileall -q "$package" >/dev/null || true # a template may be no Python
done
printf '%s\n' "$stamp" > .venv/.installed
say "Ready: .venv/bin/cdc"
