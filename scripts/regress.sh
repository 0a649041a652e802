#!/usr/bin/env bash
# `make regress`: PostgreSQL's own suites, direct and through Hawser, compared file by file.
# Arguments are tests/regress/run.py's: `scripts/regress.sh --suite regress --through transaction guc`.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

scripts/setup.sh regress
if [ -z "${HAWSER:-}" ]; then
    cargo build --release --locked -p hawser
    export HAWSER=$target/release/hawser
fi
exec python3 tests/regress/run.py "$@"
