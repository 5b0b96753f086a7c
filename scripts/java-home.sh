#!/usr/bin/env bash
# Prints the home of a Java 17 or 21, which Spark needs. Installs one as root if the machine has none.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

suitable() { # Whether this folder is the home of a Java 17 or 21.
  [ -x "$1/bin/java" ] && "$1/bin/java" -version 2>&1 | grep -qE 'version "(17|21)\b'
}
find_java() {
  local home on_path
  on_path=$(readlink -f "$(command -v java || true)" || true)
  for home in "${JAVA_HOME:-}" "${on_path%/bin/java}" /usr/lib/jvm/*; do
    if [ -n "$home" ] && suitable "$home"; then printf '%s\n' "$home"; return; fi
  done
  return 1
}

find_java && exit 0
package=openjdk-17-jre-headless
if [ "$(id -u)" = 0 ] && ! apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [0-9]'; then
  apt-get update -q >/dev/null 2>&1 </dev/null || true
  apt-cache policy "$package" | grep -q 'Candidate: [0-9]' || package=openjdk-21-jre-headless
fi
apt_install "Java 17 or 21" "$package"
find_java || fail "Java was installed, but not below /usr/lib/jvm. Set JAVA_HOME to its folder."
