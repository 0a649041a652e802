# shellcheck shell=bash
# Sourced by every script here: where things are, and how to say what goes wrong.
#
# Sets root (the repository), target (cargo's output) and PATH. The directory of rustup's proxies
# goes first: a distribution's own cargo, if there is one, does not read rust-toolchain.toml.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in
/*) ;;
*) target=$root/$target ;; # cargo takes it relative to where it runs, and it runs in $root
esac
export CARGO_TARGET_DIR=$target
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
cd "$root" || exit 1

say() { printf '==> %s\n' "$*" >&2; }
die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# The directory of initdb and postgres of the newest PostgreSQL on this machine, or nothing.
# Debian keeps them out of PATH, a directory for each major version.
postgres_bin() {
    local dir
    if [ -n "${PG_BIN:-}" ]; then
        printf '%s\n' "$PG_BIN"
        return
    fi
    dir=$(for dir in /usr/lib/postgresql/*/bin; do
        [ -x "$dir/initdb" ] && [ -x "$dir/postgres" ] && printf '%s\n' "$dir"
    done | sort -V | tail -n 1)
    if [ -z "$dir" ] && command -v initdb >/dev/null && command -v postgres >/dev/null; then
        dir=$(dirname "$(command -v initdb)")
    fi
    [ -z "$dir" ] || printf '%s\n' "$dir"
}

# The pg_config of that PostgreSQL, or $PG_CONFIG. On Debian it comes with postgresql-server-dev-NN.
pg_config_program() {
    local bin
    bin=$(postgres_bin)
    if [ -n "${PG_CONFIG:-}" ]; then
        printf '%s\n' "$PG_CONFIG"
    elif [ -n "$bin" ] && [ -x "$bin/pg_config" ]; then
        printf '%s\n' "$bin/pg_config"
    else
        echo pg_config
    fi
}
