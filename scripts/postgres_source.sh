#!/usr/bin/env bash
# PostgreSQL's source, for its tests: `scripts/postgres_source.sh MAJOR`. The last line on standard
# output is its directory; where it is not to be had, the exit code is 1 and the last line on
# standard error says why.
#
# It is the distribution's source package of the server that is installed. Archives drop the
# sources of versions that were replaced, and not all mirrors carry those of security updates: then
# the newest one of the same major version that can be had, which is said. $POSTGRES_SOURCE names a
# source tree that is there already.
#
# apt does it with lists and a cache of its own below .run/: it needs no rights, leaves the system's
# sources as they are, and checks signatures with the system's keys. What is there costs nothing.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

major=${1:?usage: scripts/postgres_source.sh MAJOR}
cache=$root/.run/postgresql-source/$major
package=postgresql-$major

if [ -n "${POSTGRES_SOURCE:-}" ]; then
    [ -d "$POSTGRES_SOURCE/src/test/regress" ] || die "POSTGRES_SOURCE=$POSTGRES_SOURCE holds no src/test/regress"
    printf '%s\n' "$POSTGRES_SOURCE"
    exit 0
fi
if [ -e "$cache/complete" ]; then
    cat "$cache/complete"
    exit 0
fi

for program in apt-get apt-cache dpkg-query python3; do
    command -v "$program" >/dev/null || die "no $program here: POSTGRES_SOURCE may name the source of PostgreSQL $major"
done

# "500 http://deb.debian.org/debian bookworm/main amd64 Packages" -> "http://... bookworm main"
places=$(apt-cache policy "$package" 2>/dev/null | awk '$1 ~ /^[0-9]+$/ && $2 ~ /^https?:/ {
    at = index($3, "/"); print $2, substr($3, 1, at - 1), substr($3, at + 1) }' | sort -u)
[ -n "$places" ] || die "apt knows no archive of $package; after \`apt-get update\` it may"

if [ -t 0 ] && [ -t 2 ] && [ -z "${CI:-}${ASSUME_YES:-}" ]; then
    read -r -p "==> fetch the source of PostgreSQL $major (25 MB, and 10 MB of lists) into $cache? [Y/n] " answer || answer=n
    case $answer in '' | [yY]*) ;; *) die "the source of PostgreSQL $major is not fetched" ;; esac
else
    say "fetching the source of PostgreSQL $major (25 MB, and 10 MB of lists) into $cache"
fi

rm -rf "$cache"
mkdir -p "$cache/apt/lists/partial" "$cache/apt/archives/partial"
keys=$(grep -rhoE 'signed-by=[^] ]+|^Signed-By: */.+' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null |
    sed -E 's/^[^=:]+[=:] *//' | sed 's|[, ]|\n|g' | grep '^/' | sort -u | paste -sd, || true)
while read -r uri suite component; do
    printf 'deb-src %s%s %s %s\n' "${keys:+[signed-by=$keys] }" "$uri" "$suite" "$component"
done <<<"$places" >"$cache/apt/sources.list"

options=(-o "Dir::Etc::SourceList=$cache/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt" -o Acquire::Retries=2)
# As root, apt fetches as a user who may not write here.
if [ "$(id -u)" = 0 ]; then options+=(-o APT::Sandbox::User=root); fi
apt-get "${options[@]}" -q update >&2 || die "apt-get could not fetch the lists of sources"

installed=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null || true)
offered=$(apt-cache "${options[@]}" showsrc --only-source "$package" 2>/dev/null | sed -n 's/^Version: //p' | sort -rVu)
cd "$cache"
for version in $(grep -Fx "$installed" <<<"$offered" || true) $offered; do
    if apt-get "${options[@]}" -q source --download-only --only-source "$package=$version" >&2; then
        [ "$version" = "$installed" ] || say "the source is $version, the server $installed: the other could not be had"
        archive=$(echo "$cache"/*.orig.tar.*)
        # Not tar, which would need bzip2 or xz beside it.
        python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$archive" "$cache" 2>/dev/null ||
            die "$archive cannot be unpacked"
        source=$(dirname "$(echo "$cache"/*/configure)")
        [ -d "$source/src/test/regress" ] || die "$archive holds no src/test/regress"
        rm -rf "$cache/apt" "$archive"
        printf '%s\n' "$source" | tee "$cache/complete"
        exit 0
    fi
done
die "no source of $package can be had: $(paste -sd' ' <<<"${offered:-apt knows none}")"
