#!/usr/bin/env bash
# Installs npm as root if it is missing. The tests fetch MySQL 5.6 with it.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
command -v npm >/dev/null || apt_install "npm" npm
