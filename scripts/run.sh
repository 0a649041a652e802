#!/usr/bin/env bash
# `make run`: Hawser in front of $DATABASE_URL, or of a throw-away PostgreSQL, until Ctrl-C.
#
# Environment: DATABASE_URL; PORT (6432, or the next free one); POOL_SIZE.
set -euo pipefail
# shellcheck source=scripts/postgres.sh
. "$(dirname "${BASH_SOURCE[0]}")/postgres.sh"

readonly ports_tried_max=50
readonly ready_seconds_max=15 # Hawser listens within milliseconds; a URL's host name may be slow
readonly drain_seconds_max=10 # then its open transactions are cut: this is a trial

hawser_pid=

busy() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The first free port from $1 on.
free_port() {
    local port
    for ((port = $1; port < $1 + ports_tried_max; port++)); do
        if ! busy "$port"; then
            echo "$port"
            return
        fi
    done
    die "no free port from $1 to $((port - 1))"
}

# A URL as clients type it: Hawser's address in place of the server's, the server's parameters
# (sslmode and the like) gone, and the password gone too: a terminal's scrollback and a CI's log are
# no places for it. psql asks for it.
client_url() { # client_url URL ADDRESS
    local rest=${1#*://} authority path='' user=''
    rest=${rest%%\?*}
    authority=${rest%%/*}
    case $rest in */*) path=/${rest#*/} ;; esac
    case $authority in *@*) user=${authority%@*} ;; esac
    user=${user%%:*}
    printf 'postgres://%s%s%s\n' "${user:+$user@}" "$2" "$path"
}

stop_hawser() {
    local deadline
    [ -n "$hawser_pid" ] || return 0
    # The first SIGTERM lets open transactions finish, a second Ctrl-C does not.
    kill -TERM "$hawser_pid" 2>/dev/null || true
    trap 'kill -TERM "$hawser_pid" 2>/dev/null || true' INT TERM HUP
    deadline=$((SECONDS + drain_seconds_max))
    while kill -0 "$hawser_pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
    kill -KILL "$hawser_pid" 2>/dev/null || true
    wait "$hawser_pid" 2>/dev/null || true
    hawser_pid=
}

cleanup() {
    stop_hawser
    trap '' INT TERM HUP # nothing from here on leaves a server behind
    rmdir "/tmp/hawser-$(id -u)" 2>/dev/null || true # of its control socket; others may use it still
    pg_stop
}

# Serves with the program that is built, until it or this shell is ended.
serve() {
    local url shown port status deadline

    trap cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP

    port=$(free_port "${PORT:-6432}")
    [ "$port" = "${PORT:-6432}" ] || say "port ${PORT:-6432} is taken: Hawser listens on $port instead"

    if [ -n "${DATABASE_URL:-}" ]; then
        case $DATABASE_URL in
        postgres://* | postgresql://*) ;;
        *) die "DATABASE_URL must be a URL: postgres://user:password@host:port/database" ;;
        esac
        url=$DATABASE_URL
        shown=$(client_url "$url" "127.0.0.1:$port")
    else
        say "starting a throw-away PostgreSQL ($(postgres_bin))"
        pg_start max_connections=200
        url=$(pg_url)
        # Its password protects nothing that outlives this command, so the line works as it is.
        shown="postgres://postgres:$pg_password@127.0.0.1:$port/postgres"
    fi

    # setsid: Ctrl-C reaches every process of the terminal's group, and Hawser would take it and the
    # SIGTERM that follows for two, and cut open transactions. setpriv: should this shell be killed
    # outright, Hawser goes too.
    setpriv --pdeathsig TERM setsid "$target/release/hawser" serve --listen "127.0.0.1:$port" \
        --server "$url" ${POOL_SIZE:+--pool-size "$POOL_SIZE"} &
    hawser_pid=$!

    deadline=$((SECONDS + ready_seconds_max))
    until busy "$port"; do
        if ! kill -0 "$hawser_pid" 2>/dev/null; then
            status=0
            wait "$hawser_pid" || status=$?
            hawser_pid=
            # Having ended well is no success here: it was to serve.
            say "hawser ended before it listened (exit code $status)"
            exit $((status == 0 ? 1 : status))
        fi
        [ $SECONDS -lt $deadline ] || die "hawser does not listen on port $port after $ready_seconds_max s"
        sleep 0.05
    done

    say "Hawser serves; Ctrl-C ends it and removes everything. In another terminal:"
    printf '\n    psql %s\n\n' "$shown"

    status=0
    wait "$hawser_pid" || status=$?
    hawser_pid=
    say "hawser ended (exit code $status)"
    exit "$status"
}

main() {
    scripts/setup.sh run
    say "building (release)"
    cargo build --release --locked -p hawser
    serve
}

# Sourced by scripts/test_scripts.sh, which tests the parts.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main; fi
