# Sourced by the scripts: what they need of a bare Debian 12 with a Rust toolchain. Each function does nothing when it is
# there already, says what it does, and needs no arguments of the caller's environment.

say() { printf '== %s\n' "$*" >&2; }

# The Rust toolchain's folder, also where no login shell has set PATH.
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# packages NAME...: Debian packages, as root or through sudo.
packages() {
  say "installing $* from Debian"
  local as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo"
  if ! $as_root apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1; then
    $as_root apt-get update -q >/dev/null
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" >/dev/null
  fi
}

# A linker for cargo.
need_cc() { command -v cc >/dev/null || packages gcc libc6-dev; }

need_curl() { command -v curl >/dev/null || packages curl ca-certificates; }

# need_component NAME: a part of the toolchain, such as clippy.
need_component() {
  cargo "$1" --version >/dev/null 2>&1 || { say "adding $1 to the toolchain"; rustup component add "${2:-$1}"; }
}

# need_python DIR [pip option...] PACKAGE...: a virtual environment in DIR with these packages. A file in it names what
# was asked for, so that nothing is fetched twice.
need_python() {
  local dir=$1; shift
  if [ "$(cat "$dir/asked-for" 2>/dev/null)" = "$*" ]; then return; fi
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then packages python3 python3-venv ca-certificates; fi
  say "making a Python environment with $*"
  [ -x "$dir/bin/python" ] || python3 -m venv "$dir"
  "$dir/bin/python" -m pip install -q "$@"
  echo "$*" >"$dir/asked-for"
}

# need_node DIR NODE PACKAGE...: packages of npm in DIR/node_modules, installed by this node, whose own npm lies beside it.
# As need_python, a file in it names what was asked for.
need_node() {
  local dir=$1 node=$2; shift 2
  if [ "$(cat "$dir/asked-for" 2>/dev/null)" = "$*" ]; then return; fi
  say "installing $* from npm"
  mkdir -p "$dir"
  local npm
  npm=$(dirname "$node")/../lib/node_modules/npm/bin/npm-cli.js
  # Its own cache: a home need not be writable. Nothing of a package runs while it is installed.
  "$node" "$npm" install --silent --no-fund --no-audit --ignore-scripts --cache "$dir/cache" --prefix "$dir" "$@" >&2
  echo "$*" >"$dir/asked-for"
}

# need_promtool DIR: Prometheus' judge of metrics in DIR/usr/bin, out of Debian's package, whose service is not wanted here.
need_promtool() {
  [ -x "$1/usr/bin/promtool" ] && return
  say "fetching promtool from Debian"
  mkdir -p "$1"
  (
    cd "$1"
    apt-get download -q prometheus >/dev/null 2>&1 || { packages ca-certificates; apt-get download -q prometheus >/dev/null; }
    dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
    rm -f prometheus_*.deb
  )
}

# field FILE NAME: the first string or number of that name in a JSON file, without a JSON tool.
field() { tr -d '\n' <"$1" | sed -n "s/.*\"$2\"[ ]*:[ ]*\"\{0,1\}\([^\",}]*\).*/\1/p"; }

# ended PID SECONDS: waits until a process of ours has ended.
ended() {
  local left=$(($2 * 10))
  while kill -0 "$1" 2>/dev/null; do
    left=$((left - 1))
    [ $left -gt 0 ] || return 1
    sleep 0.1
  done
}
