#!/usr/bin/env bash
# npm fetches MySQL 5.6 for the tests; install it when it is missing and one is root.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
command -v npm >/dev/null || apt_install "npm" npm
