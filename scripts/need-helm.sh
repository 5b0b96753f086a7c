#!/usr/bin/env bash
# Prints the path of Helm. It is built by Go from its source if it is missing, which takes minutes, once.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
folder=${TOWPATH_CACHE:-$HOME/.cache/towpath}/helm
if [ ! -x "$folder/helm" ]; then
  command -v go >/dev/null || fail "Helm is built by Go, and this machine has none. Install Go 1.24 or later."
  say "Building Helm (minutes, once)"
  GOBIN=$folder go install helm.sh/helm/v3/cmd/helm@v3.19.0 >&2
fi
printf '%s\n' "$folder/helm"
