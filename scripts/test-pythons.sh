#!/usr/bin/env bash
# The quick tests on each supported Python of this machine, each in a virtual environment of its own (.venv-3.12, …),
# which `make clean` removes; PYTHONS="3.13" names others. A Python is found on the path, or among those of pyenv and uv. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
digest=$(sha256sum requirements/dev.txt | cut -d' ' -f1)
code=0
tried=()
for version in ${PYTHONS:-3.11 3.12 3.13 3.14}; do
  python=$(find_python "$version") || { say "Python $version is not on this machine"; continue; }
  venv=.venv-$version
  if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$digest" ]; then
    say "Making $venv"
    "$python" -m venv --clear "$venv" &&
      VIRTUAL_ENV=$PWD/$venv .venv/bin/uv pip install -q --require-hashes -r requirements/dev.txt &&
      "$venv/bin/python" -m pip install -q --no-deps --no-build-isolation -e . &&
      printf '%s\n' "$digest" >"$venv/.installed" || { code=1; tried+=("$version: not installed"); continue; }
  fi
  say "The quick tests on $("$venv/bin/python" --version)"
  tried_on "$version" "$venv/bin/python" -m pytest tests/unit -n "$(($(nproc) + 1))" --dist worksteal -q -p no:cacheprovider "$@"
done
printf '%s\n' "${tried[@]}"
exit "$code"
