# Sourced by the other scripts: prints messages, and installs Debian packages if run as root.

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() { printf 'make: %s\n' "$*" >&2; exit 2; }

# tried_on WHAT COMMAND…: runs a command, and adds its outcome to the array "tried"; a failure sets "code".
tried_on() {
  local what=$1; shift
  if "$@"; then tried+=("$what: passed"); else code=1; tried+=("$what: FAILED"); fi
}

# find_python VERSION: prints the path of this Python, such as 3.12, on the path or among those of pyenv and uv.
find_python() {
  local candidate
  for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python "$HOME"/.local/share/uv/python/cpython-"$1".*/bin/python; do
    if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# apt_install WHAT PACKAGE…: installs Debian packages as root; otherwise fails with the command to run.
apt_install() {
  local what=$1; shift
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "$what is missing. As root: apt-get install $*"
  fi
  say "Installing $* ($what is missing)"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -q --no-install-recommends "$@" >/dev/null 2>&1 </dev/null && return
  apt-get update -q >/dev/null </dev/null # missing or old package lists are the usual reason
  apt-get install -y -q --no-install-recommends "$@" >/dev/null </dev/null || fail "$what cannot be installed: see above."
}
