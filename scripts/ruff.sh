#!/usr/bin/env bash
# Checks all Python of the repository by ruff, with the rules of ruff.toml: a part of `make check`.
#
# The version is pinned, since each knows other rules. Where PATH has another one or none, it comes from
# PyPI into a virtual environment in cargo's output directory. Exit code 69: it cannot be had.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

version=0.17.6
unavailable=69
own=$target/ruff-$version

is_it() { [ "$("$1" --version 2>/dev/null)" = "ruff $version" ]; }

install_it() {
    say "installing ruff $version into $own"
    rm -rf "$own"
    python3 -m venv "$own" && "$own/bin/pip" install --quiet --disable-pip-version-check "ruff==$version"
}

program=ruff
if ! is_it "$program"; then
    program=$own/bin/ruff
    if ! is_it "$program" && ! { install_it && is_it "$program"; }; then
        printf 'error: ruff %s cannot be had: see above\n' "$version" >&2
        exit $unavailable
    fi
fi
exec "$program" check --quiet "$@"
