#!/usr/bin/env bash
# Builds and installs the extension, and runs all of its tests against throw-away servers.
#
#     PG_CONFIG=/path/of/pg_config HAWSER=/path/of/hawser STEPS=10000 extension/check.sh
#
# The last line is the sum of all counts: N passed, N failed, N skipped. Installing writes into the
# server's directories: without the right to, or without its headers, all is skipped, and it is said why.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
pg_config=${PG_CONFIG:-pg_config}
passed=0 failed=0 skipped=0

skip() { # skip REASON: everything
    printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}

add() { # add LINE: "N passed, N failed, N skipped"
    local counts
    read -r -a counts <<<"${1//,/}"
    passed=$((passed + counts[0])) failed=$((failed + counts[2])) skipped=$((skipped + counts[4]))
}

run() { # run PROGRAM...: a test program whose last line is its count
    local output
    output=$("$@" 2>&1) || true
    printf '%s\n' "$output"
    local last=${output##*$'\n'}
    if [[ $last =~ ^[0-9]+\ passed,\ [0-9]+\ failed,\ [0-9]+\ skipped$ ]]; then add "$last"; else failed=$((failed + 1)); fi
}

command -v "$pg_config" >/dev/null || skip "there is no pg_config; PG_CONFIG names it"
[[ -e $("$pg_config" --pgxs) && -e $("$pg_config" --includedir-server)/postgres.h ]] || skip "there are no headers of the server"
[[ -w $("$pg_config" --pkglibdir) && -w $("$pg_config" --sharedir)/extension ]] || skip "no right to install into $("$pg_config" --pkglibdir)"

# Built in a copy: objects of another version must not be taken for this one's.
work=$(mktemp -d)
as_server=()
if [[ $EUID == 0 ]]; then as_server=(runuser -u postgres --); fi
stop() {
    [[ ! -e $work/data/postmaster.pid ]] || "${as_server[@]}" "$bin/pg_ctl" -D "$work/data" -m immediate -w stop >/dev/null
    rm -rf "$work"
}
trap stop EXIT
bin=$("$pg_config" --bindir)
cp -R "$here" "$work/extension"
make -s -C "$work/extension" PG_CONFIG="$pg_config" clean >/dev/null
make -s -C "$work/extension" PG_CONFIG="$pg_config" COPT=-Werror install >/dev/null

if [[ $EUID == 0 ]]; then chown -R postgres "$work"; fi
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cd "$work"
"${as_server[@]}" "$bin/initdb" -D "$work/data" -A trust -N >/dev/null
"${as_server[@]}" "$bin/pg_ctl" -D "$work/data" -l "$work/log" -w \
    -o "-p $port -c listen_addresses= -c unix_socket_directories=$work -c fsync=off" start >/dev/null
regress=$("${as_server[@]}" env PGHOST="$work" PGPORT="$port" make -s -C "$work/extension" PG_CONFIG="$pg_config" installcheck 2>&1) || true
printf '%s\n' "$regress"
good=$(grep -cE '^(test .*\.\.\. ok|ok )' <<<"$regress" || true)
bad=$(grep -cE '^(test .*\.\.\. FAILED|not ok )' <<<"$regress" || true)
[[ $bad == 0 ]] || cat "$work/extension/regression.diffs"
[[ $((good + bad)) != 0 ]] || bad=1
add "$good passed, $bad failed, 0 skipped"

run "$here/report_test.py" --pg-config "$pg_config"
run "$here/exact_test.py" --pg-config "$pg_config" --steps "${STEPS:-3000}"
run "$here/pooler_test.py" --pg-config "$pg_config"
run "$here/mptcp_test.py" --pg-config "$pg_config"
run "$here/handover_test.py" --pg-config "$pg_config"
run "$here/clients_test.py" --pg-config "$pg_config"
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[[ $failed == 0 ]]
