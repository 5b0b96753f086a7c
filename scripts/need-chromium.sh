#!/usr/bin/env bash
# Installs Chromium and its driver, for the tests of pages in a browser. Returns at once if they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
command -v chromium >/dev/null && command -v chromedriver >/dev/null || apt_install "Chromium" chromium chromium-driver
