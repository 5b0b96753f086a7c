#!/usr/bin/env bash
# Writes requirements/*.txt from pyproject.toml: exact versions with hashes, without addresses, for Python 3.11 and later.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header "$@"; }
compile pyproject.toml --all-extras --group dev -o requirements/dev.txt
compile pyproject.toml -c requirements/dev.txt -o requirements/core.txt
echo uv | compile - -o requirements/uv.txt
echo cyclonedx-bom | compile - -o requirements/release.txt
