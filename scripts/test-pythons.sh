#!/usr/bin/env bash
# The quick tests on each supported Python of this machine, each in a virtual environment of its own (.venv-3.12, …),
# which `make clean` removes; PYTHONS="3.13" names others. A Python is found on the path, or among those of pyenv and uv. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
digest=$(sha256sum requirements/dev.txt | cut -d' ' -f1)
code=0
tried=()
find_python() { # the interpreter of a version, such as 3.12
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python "$HOME"/.local/share/uv/python/cpython-"$1".*/bin/python; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}
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
