#!/usr/bin/env bash
# Builds all kernels with other versions of Numba, the oldest that is supported and the newest that there is, in a copy of
# the sources, and decodes the golden files with what they have built. Each has a virtual environment of its own (.venv-numba-…), which
# `make clean` removes. NUMBAS="0.65.1" names others. If a newer one than cdc/kernels/jit.py names passes, raise its bound
# there; if it fails, the message of that bound is what users see. Arguments go to pytest.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
code=0
tried=()
packages=$PWD/$(echo .venv/lib/python3.*/site-packages) # all but Numba, llvmlite and NumPy comes from there
for version in ${NUMBAS:-0.62.1 newest}; do
  venv=$PWD/.venv-numba-$version
  wanted="numba==$version"
  [ "$version" != newest ] || wanted=numba
  say "Making $venv"
  # Not in this folder: its pyproject.toml pins Numba.
  .venv/bin/python -m venv --clear "$venv" && (cd / && VIRTUAL_ENV=$venv "$OLDPWD/.venv/bin/uv" pip install -q "$wanted" numpy) &&
    printf '%s\n' "$packages" >"$(echo "$venv"/lib/python3.*/site-packages)/zz-others.pth" ||
    { code=1; tried+=("$version: not installed"); continue; }
  say "Kernels by Numba $("$venv/bin/python" -c 'import numba, numpy; print(numba.__version__, "with NumPy", numpy.__version__)')"
  copy=$(mktemp -d)
  cp -r cdc tests docs pyproject.toml "$copy" && rm -rf "$copy/cdc/kernels/prebuilt"
  tried_on "$version, all kernels built" env -C "$copy" PYTHONPATH="$copy" "$venv/bin/python" -m cdc.kernels.build
  tried_on "$version, golden files" env -C "$copy" PYTHONPATH="$copy" "$venv/bin/python" -m pytest tests/unit/binlog tests/unit/decode/test_golden.py -q -m 'not long' -p no:cacheprovider "$@"
  rm -rf "$copy"
done
printf '%s\n' "${tried[@]}"
exit "$code"
