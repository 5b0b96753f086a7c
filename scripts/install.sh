#!/usr/bin/env bash
# Make .venv with everything of requirements/dev.txt and this checkout in it. Quick when that has been done.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

suitable() { # is this command a Python that the lock file is for?
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}
find_python() {
  local name
  for name in ${PYTHON:-} python3 python3.13 python3.12 python3.11 /usr/bin/python3; do
    if suitable "$name"; then command -v "$name"; return; fi
  done
  return 1
}

python=$(find_python) || { apt_install "Python 3.11 to 3.13" python3 python3-venv; python=$(find_python); } ||
  fail "this machine has no Python 3.11, 3.12 or 3.13. Install one and name it: make PYTHON=/path/to/python3"
digest=$(cat requirements/*.txt pyproject.toml scripts/install.sh | sha256sum | cut -d' ' -f1)
place="$("$python" -c 'import sys; print(sys.version.split()[0])') $PWD" # a virtual environment cannot be moved
stamp="$digest $place"
if [ -x .venv/bin/python ] && [ "$(cat .venv/.installed 2>/dev/null)" = "$stamp" ]; then exit 0; fi

if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
  version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
  apt_install "Python's venv module" "$version-venv"
fi
say "Making .venv with $("$python" --version) (about 150 packages, once)"
# What an interrupted run or an older lock left is used again; another Python's or another folder's is not.
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
[ ! -t 2 ] || quiet= # at a terminal uv shows how far it is
if ! .venv/bin/uv pip install $quiet --require-hashes -r requirements/dev.txt; then
  say "uv could not install them; trying pip, which is slower"
  .venv/bin/python -m pip install -q --require-hashes -r requirements/dev.txt
fi
# hatchling is in the lock, so that building this checkout fetches nothing that is not.
.venv/bin/python -m pip install -q --no-deps --no-build-isolation -e .
printf '%s\n' "$stamp" > .venv/.installed
say "Ready: .venv/bin/cdc"
