#!/usr/bin/env bash
# A throw-away PostgreSQL: its own directory, port and password, gone when its user goes.
#
# Sourced, it gives pg_start, pg_url and pg_stop. Called, it serves until Ctrl-C and prints a URL;
# arguments are settings: scripts/postgres.sh max_connections=300
#
# PostgreSQL refuses to run as root, so root hands it to `postgres`, or to `nobody` where that user
# does not exist. The server listens on loopback and on a unix socket in its own directory, and
# asks for a password: whoever logs in as superuser can run programs as the server's user.
# It is a child of this shell and has asked the kernel for SIGQUIT when this shell dies, so that
# not even a SIGKILL leaves a server behind (only its directory).
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

pg_dir=
pg_pid=
pg_port=
pg_password=

readonly pg_start_seconds_max=60 # slow disks; a trial start takes about one
readonly pg_stop_seconds_max=15

# A port of the ephemeral range on which nobody answers. Another process may take it before the
# server does: pg_start then tries the next.
pg_free_port() {
    local port
    while :; do
        port=$((49152 + RANDOM % 16000))
        if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
            echo "$port"
            return
        fi
    done
}

# Starts a server. Arguments are settings. Sets pg_dir, pg_pid, pg_port and pg_password.
pg_start() {
    local bin setting args=() as_user=(setpriv) attempt owner=
    bin=$(postgres_bin)
    [ -n "$bin" ] || die "no PostgreSQL server here: scripts/setup.sh demo installs one"
    for setting in "$@"; do args+=(-c "$setting"); done

    pg_dir=$(mktemp -d "${TMPDIR:-/tmp}/hawser-postgres.XXXXXX")
    if [ "$(id -u)" = 0 ]; then
        owner=nobody
        if id -u postgres >/dev/null 2>&1; then owner=postgres; fi
        as_user=(setpriv --reuid "$owner" --regid "$(id -g "$owner")" --clear-groups)
        chown "$owner:" "$pg_dir"
        # A TMPDIR of root's own is closed to that user.
        if ! "${as_user[@]}" test -w "$pg_dir"; then
            rmdir "$pg_dir"
            pg_dir=
            die "$owner cannot enter ${TMPDIR:-/tmp}: point TMPDIR to a directory that all may enter"
        fi
    fi

    pg_password=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    # In a file inside the private directory, never in a list of processes.
    (umask 077 && printf '%s\n' "$pg_password" >"$pg_dir/password")
    [ -z "$owner" ] || chown "$owner:" "$pg_dir/password"
    if ! "${as_user[@]}" --pdeathsig KILL "$bin/initdb" --pgdata "$pg_dir/data" \
        --username postgres --encoding UTF8 --locale C --auth scram-sha-256 --no-sync \
        --pwfile "$pg_dir/password" >"$pg_dir/log" 2>&1 </dev/null; then
        cat "$pg_dir/log" >&2
        pg_stop
        die "initdb failed"
    fi
    rm -f "$pg_dir/password"

    for attempt in 1 2 3 4 5; do
        pg_port=$(pg_free_port)
        # setsid: Ctrl-C reaches every process of the terminal's group, and the server must outlive
        # the transactions that Hawser finishes. No durability: it is thrown away, and a trial is to
        # show the pooler and not the disk.
        "${as_user[@]}" --pdeathsig QUIT setsid "$bin/postgres" -D "$pg_dir/data" -p "$pg_port" \
            -c listen_addresses=127.0.0.1 -c unix_socket_directories="$pg_dir" \
            -c fsync=off -c synchronous_commit=off -c full_page_writes=off \
            ${args[@]+"${args[@]}"} >>"$pg_dir/log" 2>&1 </dev/null &
        pg_pid=$!
        if pg_wait_ready; then return 0; fi
        say "PostgreSQL did not start on port $pg_port (attempt $attempt of 5)"
        # Only a taken port is worth another attempt.
        grep -q 'could not bind' "$pg_dir/log" || break
    done
    cat "$pg_dir/log" >&2
    pg_stop
    die "PostgreSQL did not start"
}

pg_wait_ready() {
    local deadline=$((SECONDS + pg_start_seconds_max))
    while [ $SECONDS -lt $deadline ] && kill -0 "$pg_pid" 2>/dev/null; do
        # The eighth line of this file is the server's own word on whether it is ready.
        if [ "$(sed -n 8p "$pg_dir/data/postmaster.pid" 2>/dev/null | tr -d ' ')" = ready ]; then
            return 0
        fi
        sleep 0.1
    done
    return 1
}

pg_url() { printf 'postgres://postgres:%s@127.0.0.1:%s/postgres\n' "$pg_password" "$pg_port"; }

# Ends the server and removes its directory; may be called at any time, and again.
pg_stop() {
    local signal deadline
    if [ -n "$pg_pid" ]; then
        # Fast shutdown first; immediate if a backend hangs; nothing survives the third.
        for signal in INT QUIT KILL; do
            kill -s "$signal" "$pg_pid" 2>/dev/null || break
            deadline=$((SECONDS + pg_stop_seconds_max))
            while [ $SECONDS -lt $deadline ] && kill -0 "$pg_pid" 2>/dev/null; do sleep 0.1; done
        done
        wait "$pg_pid" 2>/dev/null || true
        pg_pid=
    fi
    if [ -n "$pg_dir" ]; then
        rm -rf -- "$pg_dir"
        pg_dir=
    fi
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    trap pg_stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    pg_start "$@"
    pg_url
    wait "$pg_pid"
fi
