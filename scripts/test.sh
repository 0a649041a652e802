#!/usr/bin/env bash
# `make test`: every test that this machine can run. ALL=1 makes it able to run all. CHECKS=1 begins
# with the checks of `make check`: continuous integration asks for both.
#
# The last line is the sum of the counts of cargo, Python and scripts, alone on its line:
#     N passed, N failed, N skipped
# Before it stands how many tests are flaky: they failed, passed when run again, and count as neither.
# A check that fails, a test program that dies and a count that is missing are failures, and so are
# zero tests and more than three flaky ones. Everything runs even after a failure: one run tells all that is wrong.
#
# Built once in the dev profile (clippy, cargo test) and once in release (the program that the
# Python tests drive: some of them measure). `make run` and `make bench` share that build.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

passed=0
failed=0
skipped=0
faults=()
# So many flaky tests are allowed; tests/harness/flaky.py says the same of each of its programs.
FLAKY_MAX=3
# Modules of Python tests that run at the same time. Most wait more than they compute: two on two cores
# leave these idle for 70 % of the time, and two of them are networks, which wait for their clocks.
jobs=$((2 * $(nproc) + 1))
[ "$jobs" -le 6 ] || jobs=6

# What each step took and how idle the processors were meanwhile, for those who want the run shorter.
steps=()
step_began=$SECONDS
processor_times() { # -> all, and idle ones
    awk '$1 == "cpu" { for (i = 2; i <= 9; i++) all += $i; print all, $5 + $6 }' /proc/stat
}
step_stat=$(processor_times)
step_ends() { # step_ends NAME: what ran since the last one
    local stat
    stat=$(processor_times)
    steps+=("$(awk -v name="$1" -v seconds=$((SECONDS - step_began)) \
        '{ all = $3 - $1; printf "%5d s, %2d %% idle  %s", seconds, all ? 100 * ($4 - $2) / all : 0, name }' <<<"$step_stat $stat")")
    step_began=$SECONDS
    step_stat=$stat
}

# A fault is a failure that no test counted.
fault() {
    faults+=("$*")
    failed=$((failed + 1))
    printf 'FAILED: %s\n' "$*" >&2
}

check() { # check NAME COMMAND...
    local name=$1 started=$SECONDS
    shift
    say "$name"
    "$@" || fault "$name"
    printf '    %s s\n' $((SECONDS - started)) >&2
}

# What cannot be run is said, and counted.
skip() { # skip NAME REASON
    skipped=$((skipped + 1))
    say "skipped: $1: $2"
}

# The rules of Python. Where ruff is not here and cannot be fetched either, it is said and counted as skipped.
check_python() {
    local status=0 reason=$logs/ruff.log
    say "Python's rules (ruff)"
    scripts/ruff.sh 2> >(tee "$reason" >&2) || status=$?
    if [ "$status" = 69 ]; then
        skip "Python's rules" "$(tail -n 1 "$reason")"
    elif [ "$status" != 0 ]; then
        fault "Python's rules (ruff)"
    fi
}

# Begins a command whose end `ends` or `ends_counted` waits for, by its name. Its output comes then.
declare -A begun=()
begins() { # begins NAME LOG COMMAND...
    local name=$1 log=$2
    shift 2
    nice -n 5 "$@" >"$log" 2>&1 &
    begun[$name]=$!
    trap 'kill "${begun[@]}"' EXIT # Ctrl-C does not reach them
}

# Waits for it.
ended() { # ended NAME -> its exit code
    local pid=${begun[$1]} status=0
    say "$1 (begun before)"
    wait "$pid" || status=$?
    unset 'begun[$1]' # in these quotes: names may have some
    [ "${#begun[@]}" -gt 0 ] || trap - EXIT
    return "$status"
}

ends() { # ends NAME LOG: a check, whose output matters if it fails
    local started=$SECONDS
    ended "$1" || {
        tail -n 200 "$2" >&2
        fault "$1"
    }
    printf '    %s s more\n' $((SECONDS - started)) >&2
}

ends_counted() { # ends_counted NAME LOG: a program that ends with a count
    local status=0
    ended "$1" || status=$?
    cat "$2"
    counted "$1" "$2" "$status"
}

# Sums lines like `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`.
cargo_counts() { # cargo_counts LOG -> "passed failed ignored programs"
    awk '/^test result: / {
        for (i = 1; i < NF; i++) {
            if ($(i + 1) == "passed;") p += $i
            if ($(i + 1) == "failed;") f += $i
            if ($(i + 1) == "ignored;") s += $i
        }
        n++
    } END { print p + 0, f + 0, s + 0, n + 0 }' "$1"
}

# The last line that is a count and nothing else.
printed_counts() { # printed_counts LOG -> "passed failed skipped", or nothing
    sed -n -E 's/^([0-9]+) passed, ([0-9]+) failed, ([0-9]+) skipped$/\1 \2 \3/p' "$1" | tail -n 1
}

# The tests that failed, in the words of cargo, of our own programs and of pg_regress, with the reason
# where it stands in the same line.
failed_names() { # failed_names LOG...
    sed -n -E \
        -e 's/^test ([^ ]+) .*\.\.\. FAILED.*$/\1/p' \
        -e 's/^([a-z_0-9]+) .* NOT LISTED$/regress: \1/p' \
        -e 's/^FAILED  +(.{1,400}).*$/\1/p' \
        -e 's/^not ok [0-9]* *[-+]? *([^ ]*).*$/\1/p' \
        -e 's/^((test_|driver\.)[^: ]*) +FAIL(:.{0,400})?.*$/\1\3/p' "$@"
}

# What has failed and passed when run again, each with the reason of its failure.
flaky_tests() { # flaky_tests LOG...
    sed -n '/^flaky (failed, and passed when run again):$/,/^$/s/^  //p' "$@"
}

# Names the flaky tests of all logs and counts them; many are a failure.
say_flaky() { # say_flaky LOG... -> flaky
    local all
    all=$(flaky_tests "$@" 2>/dev/null | sort)
    flaky=$(grep -c . <<<"$all" || true)
    [ "$flaky" != 0 ] || return 0
    say "flaky tests (failed, and passed when run again), with the reason of the failure:"
    sed 's/^/      /' <<<"$all" >&2
    [ "$flaky" -le "$FLAKY_MAX" ] || fault "$flaky flaky tests, at most $FLAKY_MAX are allowed"
}

# Adds a program's counts; its exit code must agree with them.
add() { # add NAME STATUS PASSED FAILED SKIPPED
    passed=$((passed + $3))
    failed=$((failed + $4))
    skipped=$((skipped + $5))
    if [ $(($3 + $4)) = 0 ]; then
        fault "$1: no test ran (exit code $2)"
    elif [ "$2" != 0 ] && [ "$4" = 0 ]; then
        fault "$1: exit code $2, though no test says that it failed"
    elif [ "$2" = 0 ] && [ "$4" != 0 ]; then
        fault "$1: exit code 0 with $4 failures"
    fi
}

run_cargo_tests() {
    local log=$1 status=0 p f s programs
    say "cargo test"
    # --no-fail-fast: without it the programs after the first failing one are not counted.
    cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
    read -r p f s programs < <(cargo_counts "$log")
    if [ "$f" -gt 0 ] && cargo_tests_pass_alone "$f" "$log"; then
        read -r f status <<<"0 0"
    fi
    add "cargo test" "$status" "$p" "$f" "$s"
    say "$programs test programs"
}

# Where a test of cargo panicked, and its message's first line.
panic_of() { # panic_of NAME LOG
    awk -v begins="---- $1 stdout ----" '
        $0 == begins { inside = 1; next }
        inside && said { print said " " $0; exit }
        inside && / panicked at / { said = substr($0, index($0, "panicked at ")) }' "$2"
}

# Some tests ask the kernel of a busy machine for something in time. As with the Python tests, what
# fails is run once more, alone, and is flaky if it passes then.
cargo_tests_pass_alone() { # cargo_tests_pass_alone FAILED LOG
    local log=$2 names name counts
    mapfile -t names < <(failed_names "$log")
    [ "${#names[@]}" = "$1" ] && [ "$1" -le 3 ] || return 1
    for name in "${names[@]}"; do
        say "once more: $name"
        cargo test --workspace --locked "$name" -- --exact >"$log.again" 2>&1 || return 1
        counts=$(cargo_counts "$log.again")
        [ "${counts%% *}" -gt 0 ] || return 1
    done
    {
        printf '\nflaky (failed, and passed when run again):\n'
        for name in "${names[@]}"; do printf '  %s: %s\n' "$name" "$(panic_of "$name" "$log")"; done
        printf '\n'
    } >"$log.flaky"
    cat "$log.flaky" >>"$log"
}

# Runs a program that ends with a count.
run_counted() { # run_counted NAME LOG COMMAND...
    local name=$1 log=$2 status=0
    shift 2
    say "$name"
    "$@" 2>&1 | tee "$log" || status=${PIPESTATUS[0]}
    counted "$name" "$log" "$status"
}

# Adds the count with which a program's output ends.
counted() { # counted NAME LOG STATUS
    local counts p f s
    counts=$(printed_counts "$2")
    if [ -z "$counts" ]; then
        fault "$1: exit code $3 and no count"
        return
    fi
    read -r p f s <<<"$counts"
    add "$1" "$3" "$p" "$f" "$s"
}

# The same tests in front of PostgreSQL 18, where the system's own is another.
second_server() { # second_server LOG
    local log=$1 directory bin reason=$logs/postgres18.log
    if "$(postgres_bin)/postgres" --version | grep -q ' 18\.'; then
        say "PostgreSQL 18 is what all tests have run with"
        return
    fi
    # Not below the repository: as root the server runs as another user, who may not look there.
    directory=$(mktemp -d)
    chmod 755 "$directory"
    if bin=$(scripts/postgres18.sh "$directory" 2> >(tee "$reason" >&2) | tail -n 1) && [ -n "$bin" ]; then
        # The drivers have had their turn.
        run_counted "python tests with PostgreSQL 18" "$log" \
            env -u ALL HAWSER="$program" PG_BIN="$bin" python3 tests/run.py --another-server --jobs "$jobs"
        [ ! -x "$bin/pg_config" ] || run_counted "extension with PostgreSQL 18" "$logs/extension-test-18.log" \
            env HAWSER="$program" PG_CONFIG="$bin/pg_config" extension/check.sh
    else
        skip "the tests with PostgreSQL 18" "$(tail -n 1 "$reason")"
    fi
    rm -rf "$directory"
}

# The drivers' own suites in short form, through Hawser in transaction mode. What of them cannot be
# had they count as skipped themselves. They wait most of the time, and so do PgBouncer's own suite, in short
# form (three minutes at most), and our own tests of sessions with clients inside, which run beside them.
others_suites() { # others_suites LOG LOG
    local started=$SECONDS reason=$logs/pgbouncer-ready.log with_pgbouncer= inside="sessions, with clients inside"
    if tests/pgbouncer/run.py --ready 2> >(tee "$reason" >&2); then
        with_pgbouncer=1
        begins "PgBouncer's own suite" "$2" env HAWSER="$program" PG_BIN="$(postgres_bin)" tests/pgbouncer/run.py
    else
        skip "PgBouncer's own suite" "$(tail -n 1 "$reason")"
    fi
    if [ -e "$("$(pg_config_program)" --includedir-server 2>/dev/null)/postgres.h" ]; then
        begins "$inside" "$logs/inside-test.log" \
            env -u ALL HAWSER="$program" python3 tests/run.py --inside -k test_state -k test_session_fidelity \
            -k test_session_listen -k test_session_within -k test_session_settings
    else
        skip "the tests of sessions with clients inside" "no pg_config, or no headers of the server"
    fi
    run_counted "drivers' own suites" "$1" \
        env HAWSER="$program" python3 tests/suites/run.py --jobs "$jobs"
    [ -z "$with_pgbouncer" ] || ends_counted "PgBouncer's own suite" "$2"
    [ -z "${begun[$inside]:-}" ] || ends_counted "$inside" "$logs/inside-test.log"
    printf '    %s s\n' $((SECONDS - started)) >&2
}

# The tests with another server, none of which measures. Beside them: PostgreSQL's own regression suite, direct and
# through Hawser in transaction mode, without and with the extension; and the extension's own tests, where its server's
# directories can be written to, which wait most of the time.
last_suites() {
    local regress="PostgreSQL's regression suite, file by file" extension="extension" reason=$logs/regress-ready.log
    if tests/regress/run.py --ready 2> >(tee "$reason" >&2); then
        begins "$regress" "$logs/regress.log" env HAWSER="$program" tests/regress/run.py --suite regress \
            --through transaction --through transaction+extension
    else
        skip "PostgreSQL's regression suite" "$(tail -n 1 "$reason")"
    fi
    if [ -w "$("$(pg_config_program)" --pkglibdir 2>/dev/null)" ]; then
        begins "$extension" "$logs/extension-test.log" \
            env HAWSER="$program" PG_CONFIG="$(pg_config_program)" extension/check.sh
    else
        skip "the extension's tests" "no pg_config, or no right to install into its server"
    fi
    second_server "$logs/python-test-18.log"
    [ -z "${begun[$extension]:-}" ] || ends_counted "$extension" "$logs/extension-test.log"
    [ -z "${begun[$regress]:-}" ] || ends_counted "$regress" "$logs/regress.log"
}

# Many systems give 1,024 descriptors until they are asked for more, which tests with a thousand clients need. No more
# than that, for some programs close all that they may have.
raise_descriptors() {
    local soft hard wanted=65536
    soft=$(ulimit -Sn) hard=$(ulimit -Hn)
    if [ "$hard" != unlimited ] && [ "$hard" -lt "$wanted" ]; then wanted=$hard; fi
    if [ "$soft" != unlimited ] && [ "$soft" -lt "$wanted" ]; then ulimit -Sn "$wanted"; fi
}

main() {
    local purpose=test checks='' logs=$root/.run flaky program=$root/.run/hawser
    case ${ALL:-} in '' | 0) unset ALL ;; *) purpose=all && export ALL=1 ;; esac
    case ${CHECKS:-} in '' | 0) ;; *) checks=1 ;; esac
    raise_descriptors

    scripts/setup.sh "$purpose"
    step_ends "set-up"
    mkdir -p "$logs"
    rm -f "$logs"/*.log

    if [ "$checks" ]; then
        check "formatting" cargo fmt --all --check
        check_python
        check "workspace rules (cargo xtask check)" cargo xtask check
        check "the size of the house (cargo xtask house)" cargo xtask house
        step_ends "checks"
    fi
    # Of several builds one has a processor to spare while the last crates of another are compiled.
    begins "release build" "$logs/release-build.log" cargo build --release --locked -p hawser
    if [ "$checks" ]; then
        check "clippy" cargo clippy --workspace --all-targets --locked --quiet -- -D warnings
        step_ends "clippy, beside the release build"
    fi
    run_counted "scripts" "$logs/scripts-test.log" scripts/test_scripts.sh
    step_ends "scripts, beside the release build"
    run_cargo_tests "$logs/cargo-test.log"
    step_ends "cargo test, beside the release build"
    ends "release build" "$logs/release-build.log"
    # Other users run it, too, who may not look into the target directory.
    cp "$target/release/hawser" "$program" || rm -f "$program"
    step_ends "the rest of the release build"
    # Nothing is compiled beside these: some measure.
    run_counted "python tests" "$logs/python-test.log" \
        env HAWSER="$program" PG_BIN="$(postgres_bin)" python3 tests/run.py --jobs "$jobs"
    step_ends "python tests"
    if [ "$purpose" = all ]; then
        others_suites "$logs/suites-test.log" "$logs/pgbouncer-test.log"
        step_ends "drivers' own suites, PgBouncer's beside them"
        last_suites
        step_ends "python tests with PostgreSQL 18, its regression suite and the extension's tests beside them"
    fi

    say "$SECONDS s:"
    printf '    %s\n' "${steps[@]}" >&2
    say_flaky "$logs"/*-test*.log
    # Here too, because the end of the output is all that some see of it.
    if [ "$failed" != 0 ]; then
        say "failed tests:"
        failed_names "$logs"/*-test*.log "$logs"/regress.log 2>/dev/null | sort -u | sed 's/^/      /' >&2
    fi
    if [ "${#faults[@]}" -gt 0 ]; then
        say "beside the tests that failed:"
        printf '      %s\n' "${faults[@]}" >&2
    fi
    printf 'flaky: %s%s\n' "$flaky" "$([ "$flaky" = 0 ] || echo ' (named above)')"
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    [ "$failed" = 0 ]
}

# Sourced by scripts/test_scripts.sh, which tests the parts.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then main; fi
