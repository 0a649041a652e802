#!/usr/bin/env bash
# Tests of the scripts themselves. Ends with `N passed, N failed, N skipped`.
#
# `make run` is tried whole with a stand-in for the program, which only listens: what is under test
# is that whatever ends, nothing stays behind.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

passed=0
failed=0
skipped=0
channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"

proves() { # proves NAME COMMAND...: the command's success is the proof
    local name=$1
    shift
    # A process of its own: `set -e` is off inside conditions, and tests must stop at the first
    # thing that does not hold.
    set +e
    (
        set -e
        "$@"
    ) >"$scratch/output" 2>&1 </dev/null
    local status=$?
    set -e
    if [ $status = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s\n' "$name"
        sed 's/^/        /' "$scratch/output"
    fi
}

skips() { # skips NAME REASON
    skipped=$((skipped + 1))
    printf 'skipped %s: %s\n' "$1" "$2"
}

equal() {
    [ "$1" = "$2" ] || {
        printf 'got      %s\nexpected %s\n' "$1" "$2"
        return 1
    }
}

# `! command` does not stop a script under `set -e`; this does.
refutes() { if "$@"; then return 1; fi; }

# ---- counts ----------------------------------------------------------------------------------

sums_all_test_programs() {
    . scripts/test.sh
    cat >"$scratch/log" <<'LOG'
running 2 tests
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 40 passed; 3 failed; 0 ignored; 0 measured; 5 filtered out; finished in 1.00s
a test may print 7 passed; 7 failed; too
LOG
    equal "$(cargo_counts "$scratch/log")" "42 3 1 2"
}

takes_only_a_line_that_is_a_count() {
    . scripts/test.sh
    printf '1 passed, 1 failed, 1 skipped\nso far 9 passed, 9 failed, 9 skipped\n5 passed, 0 failed, 2 skipped\nbye\n' >"$scratch/log"
    equal "$(printed_counts "$scratch/log")" "5 0 2"
    echo "5 passed, 0 failed" >"$scratch/log"
    equal "$(printed_counts "$scratch/log")" ""
}

waits_for_what_was_begun() {
    . scripts/test.sh
    begins "a build" "$scratch/begun.log" sh -c 'sleep 0.2; echo made'
    ends "a build" "$scratch/begun.log" 2>"$scratch/said"
    equal "$failed" 0
    begins "a build" "$scratch/begun.log" sh -c 'echo why; exit 3'
    ends "a build" "$scratch/begun.log" 2>"$scratch/said"
    equal "$failed" 1
    grep why "$scratch/said"
    begins "a suite" "$scratch/begun.log" sh -c 'echo "3 passed, 1 failed, 2 skipped"; exit 1'
    ends_counted "a suite" "$scratch/begun.log" 2>"$scratch/said"
    equal "$passed $failed $skipped" "3 2 2"
    begins "a suite" "$scratch/begun.log" sh -c 'echo dead'
    ends_counted "a suite" "$scratch/begun.log" 2>"$scratch/said"
    equal "$failed" 3
    begins "another's" "$scratch/slow.log" sh -c 'sleep 0.3; echo "1 passed, 0 failed, 0 skipped"'
    begins "quick" "$scratch/quick.log" sh -c 'echo "5 passed, 1 failed, 0 skipped"; exit 1'
    ends_counted "another's" "$scratch/slow.log" 2>"$scratch/said"
    equal "$passed $failed" "4 3"
    ends_counted "quick" "$scratch/quick.log" 2>"$scratch/said"
    equal "$passed $failed ${#begun[@]}" "9 4 0"
}

tells_what_each_step_took() {
    . scripts/test.sh
    step_ends "a"
    sleep 1.1
    step_ends "b"
    equal "${#steps[@]}" 2
    grep -Eq '^ +[12] s, +[0-9]+ % idle  b$' <<<"${steps[1]}"
}

raises_its_own_limit_of_descriptors() {
    . scripts/test.sh
    ulimit -Sn 1024
    ulimit -Hn 3000
    raise_descriptors
    equal "$(ulimit -Sn)" 3000
    raise_descriptors
    equal "$(ulimit -Sn) $(ulimit -Hn)" "3000 3000"
}

names_what_failed() {
    . scripts/test.sh
    cat >"$scratch/log" <<'LOG'
test engine::tests::a_pin_ends ... ok
test engine::tests::a_pin_stays ... FAILED
FAILED  many_hand_overs: AssertionError: 3
test handover                     ... FAILED      120 ms
not ok 7     - guc                        300 ms
temp                                 ok       ok       differs  NOT LISTED
test_limits.test_one                                      FAIL: AssertionError: 0
    suite.py:12: assert x
test_limits.test_two                                      ok: 1.0 s
LOG
    equal "$(failed_names "$scratch/log" | tr '\n' '|')" \
        "engine::tests::a_pin_stays|many_hand_overs: AssertionError: 3|handover|guc|regress: temp|test_limits.test_one: AssertionError: 0|"
}

names_what_passed_the_second_time() {
    . scripts/test.sh
    cat >"$scratch/log" <<'LOG'
16 s

flaky (failed, and passed when run again):
  test_limits.test_one: AssertionError: 1 is not 2
  driver.asyncpg.copy: out of time

failed:
  test_limits.test_two

3 passed, 1 failed, 0 skipped
LOG
    equal "$(flaky_tests "$scratch/log" | tr '\n' '|')" \
        "test_limits.test_one: AssertionError: 1 is not 2|driver.asyncpg.copy: out of time|"
}

fails_a_run_with_many_flaky_tests() {
    . scripts/test.sh
    local flaky logs=$scratch/flaky
    mkdir -p "$logs"
    printf 'flaky (failed, and passed when run again):\n  a: x\n  b: y\n\n' >"$logs/1"
    printf 'flaky (failed, and passed when run again):\n  a: x\n\n' >"$logs/2"
    say_flaky "$logs/1" "$logs/2" 2>"$scratch/said"
    equal "$flaky $failed" "3 0"
    equal "$(grep -c '^ *a: x$' "$scratch/said")" 2
    printf 'flaky (failed, and passed when run again):\n  c: z\n\n' >"$logs/3"
    say_flaky "$logs"/* 2>"$scratch/said"
    equal "$flaky $failed" "4 1"
    echo '3 passed, 0 failed, 0 skipped' >"$logs/none"
    say_flaky "$logs/none" 2>"$scratch/said"
    equal "$flaky $failed" "0 1"
}

runs_a_failed_test_of_cargo_once_more() {
    . scripts/test.sh
    say() { :; }
    # shellcheck disable=SC2317
    cargo() { # a test that passes alone, one that never does, one that is not found
        case "$*" in
        *steady*) echo "test result: FAILED. 0 passed; 1 failed; 0 ignored" && return 101 ;;
        *gone*) echo "test result: ok. 0 passed; 0 failed; 0 ignored" ;;
        *) echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
        esac
    }
    local log=$scratch/log
    cat >"$log" <<'LOG'
test a::slow ... FAILED
---- a::slow stdout ----

thread 'a::slow' (7) panicked at src/a.rs:3:5:
it took 3 s
LOG
    cargo_tests_pass_alone 1 "$log"
    equal "$(flaky_tests "$log")" "a::slow: panicked at src/a.rs:3:5: it took 3 s"
    # It counts as neither: cargo_counts had 2 passed, 1 failed.
    # shellcheck disable=SC2317
    cargo() {
        case "$*" in
        *a::slow*) echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
        *) printf 'test a::slow ... FAILED\ntest result: FAILED. 2 passed; 1 failed; 0 ignored;\n' && return 101 ;;
        esac
    }
    run_cargo_tests "$log" >/dev/null
    equal "$passed $failed" "2 0"
    # shellcheck disable=SC2317
    cargo() {
        case "$*" in
        *steady*) echo "test result: FAILED. 0 passed; 1 failed; 0 ignored" && return 101 ;;
        *gone*) echo "test result: ok. 0 passed; 0 failed; 0 ignored" ;;
        *) echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
        esac
    }
    echo "test a::slow ... FAILED" >"$log"
    refutes cargo_tests_pass_alone 2 "$log" # a program that died counts and has no name
    echo "test a::steady ... FAILED" >"$log"
    refutes cargo_tests_pass_alone 1 "$log"
    echo "test a::gone ... FAILED" >"$log"
    refutes cargo_tests_pass_alone 1 "$log"
    equal "$(flaky_tests "$log")" ""
}

counts_faults() {
    . scripts/test.sh
    logs=$scratch
    run_counted agrees "$logs/1" echo "3 passed, 0 failed, 1 skipped"
    equal "$passed/$failed/$skipped" 3/0/1
    run_counted silent "$logs/2" true
    equal "$failed" 1
    run_counted died "$logs/3" bash -c 'echo "3 passed, 0 failed, 0 skipped"; exit 101'
    equal "$passed/$failed" 6/2
    run_counted empty "$logs/4" echo "0 passed, 0 failed, 9 skipped"
    equal "$failed" 3
    run_counted lenient "$logs/5" echo "1 passed, 1 failed, 0 skipped"
    equal "$failed" 5
}

a_second_server_that_is_not_to_be_had_is_a_skip_with_its_reason() {
    . scripts/test.sh
    logs=$scratch
    mkdir "$scratch/stand-ins"
    printf '#!/bin/sh\necho postgres 15.1\n' >"$scratch/stand-ins/postgres"
    printf '#!/bin/sh\necho "no network" >&2\nexit 1\n' >"$scratch/stand-ins/npm"
    printf '#!/bin/sh\nexit 1\n' >"$scratch/stand-ins/node"
    chmod +x "$scratch/stand-ins"/*
    export PG_BIN=$scratch/stand-ins PATH=$scratch/stand-ins:$PATH
    second_server "$scratch/log" 2>"$scratch/said"
    equal "$passed/$failed/$skipped" 0/0/1
    grep -q 'skipped: the tests with PostgreSQL 18: error: .*could not fetch' "$scratch/said"
    # It is the first server already.
    printf '#!/bin/sh\necho postgres 18.4\n' >"$scratch/stand-ins/postgres"
    second_server "$scratch/log"
    equal "$passed/$failed/$skipped" 0/0/1
}

# ---- URLs and ports --------------------------------------------------------------------------

shows_an_address_without_a_password() {
    . scripts/run.sh
    local at=127.0.0.1:6432
    equal "$(client_url 'postgres://u:s3cret@db.example:5433/app?sslmode=require' $at)" "postgres://u@$at/app"
    equal "$(client_url 'postgresql://u@[::1]/app' $at)" "postgres://u@$at/app"
    equal "$(client_url 'postgres://u:a%40b@h1,h2' $at)" "postgres://u@$at"
    equal "$(client_url 'postgres://h' $at)" "postgres://$at"
}

needs_python() { command -v python3 >/dev/null; }
needs_postgres() { (. scripts/env.sh && [ -n "$(postgres_bin)" ]); }

# Listens on the port $1, and prints it; 0 is any.
listener='import socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("127.0.0.1", int(sys.argv[1]))); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)'

skips_a_port_that_is_taken() {
    . scripts/run.sh
    local port taken
    exec {taken}< <(exec python3 -c "$listener" 0)
    local pid=$!
    read -r port <&"$taken"
    [ "$(free_port "$port")" -gt "$port" ]
    kill "$pid"
}

# ---- throw-away PostgreSQL -------------------------------------------------------------------

starts_and_leaves_nothing() {
    . scripts/postgres.sh
    pg_start max_connections=33
    local dir=$pg_dir pid=$pg_pid
    grep -q . "$dir/data/postmaster.pid"
    equal "$(PGPASSWORD=$pg_password "$(postgres_bin)/psql" -h "$dir" -p "$pg_port" -U postgres -Atc 'show max_connections')" 33
    equal "$(stat -c %a "$dir")" 700
    [ ! -e "$dir/password" ]
    if [ "$(id -u)" = 0 ]; then [ "$(stat -c %u "/proc/$pid")" != 0 ]; fi
    pg_stop
    [ ! -e "$dir" ]
    refutes kill -0 "$pid"
    pg_stop # and again: it is called by more than one trap
}

refuses_without_the_password() {
    . scripts/postgres.sh
    trap pg_stop EXIT
    pg_start
    refutes env PGPASSWORD=wrong "$(postgres_bin)/psql" -h 127.0.0.1 -p "$pg_port" -U postgres -Atc 'select 1'
}

# ---- make run --------------------------------------------------------------------------------

# The stand-in: takes the command line of DESIGN's contract, listens, and notes what it was told.
make_stand_in() { # make_stand_in DIR [COMMAND that runs instead of listening]
    local behaviour=${2:-"port=\${3##*:}; exec python3 -c '$listener' \"\$port\""}
    mkdir -p "$1/release"
    cat >"$1/release/hawser" <<STANDIN
#!/usr/bin/env bash
echo "\$* HAWSER_SERVER_URL=\$HAWSER_SERVER_URL" >"$1/told"
$behaviour
STANDIN
    chmod +x "$1/release/hawser"
}

# Starts `serve` of run.sh with the stand-in; sets run_pid, and waits for the line to copy.
start_run() { # start_run TARGET [VARIABLE=VALUE...]
    local dir=$1 i
    shift
    # A shell's background jobs ignore SIGINT from birth and cannot trap it: undo that.
    env --default-signal=INT CARGO_TARGET_DIR="$dir" TMPDIR="$dir/tmp" DATABASE_URL= "$@" \
        bash -c '. scripts/run.sh; serve' >"$dir/out" 2>&1 &
    run_pid=$!
    for ((i = 0; i < 600; i++)); do
        if grep -q '^    psql postgres://' "$dir/out" || ! kill -0 $run_pid 2>/dev/null; then break; fi
        sleep 0.1
    done
    cat "$dir/out"
}

new_target() { # a directory that another user may enter, for the server's sake
    local dir=$scratch/run.$RANDOM$RANDOM
    mkdir -p "$dir/tmp"
    chmod 755 "$dir"
    chmod 1777 "$dir/tmp"
    echo "$dir"
}

leaves_nothing() { # leaves_nothing TARGET
    ls "$1/tmp"
    [ -z "$(ls "$1/tmp")" ]
    no_process_of "$1"
}

no_process_of() { # no_process_of TARGET
    # Every process of the trial, and none of the test, has this in its environment. One that ends
    # while it is looked at is no finding.
    local left
    left=$(grep -la "CARGO_TARGET_DIR=$1" /proc/[0-9]*/environ 2>/dev/null || true)
    equal "$left" ""
}

ends_clean_on() { # ends_clean_on SIGNAL EXIT_CODE
    local dir status=0
    dir=$(new_target)
    make_stand_in "$dir"
    start_run "$dir"
    grep -q '^    psql postgres://postgres:[0-9a-f]*@127.0.0.1:[0-9]*/postgres$' "$dir/out"
    grep -Eq '^serve --listen 127.0.0.1:[0-9]+ HAWSER_SERVER_URL=postgres://postgres:[0-9a-f]+@127.0.0.1:[0-9]+/postgres$' "$dir/told"
    [ -n "$(ls "$dir/tmp")" ]
    kill -s "$1" $run_pid
    wait $run_pid || status=$?
    equal $status "$2"
    leaves_nothing "$dir"
}

# Not even a SIGKILL of the script leaves a process behind, only the directory.
leaves_no_process_when_killed() {
    local dir i
    dir=$(new_target)
    make_stand_in "$dir"
    start_run "$dir"
    kill -KILL $run_pid
    wait $run_pid || true
    for ((i = 0; i < 100; i++)); do
        if (no_process_of "$dir") >/dev/null; then break; fi
        sleep 0.1
    done
    no_process_of "$dir"
}

ends_clean_when_the_program_dies() {
    local dir status=0
    dir=$(new_target)
    make_stand_in "$dir" 'exit 3'
    start_run "$dir"
    wait $run_pid || status=$?
    equal $status 3
    leaves_nothing "$dir"
}

removes_the_empty_directory_of_the_control_socket() {
    local dir place
    place=/tmp/hawser-$(id -u)
    if [ -n "$(ls -A "$place" 2>/dev/null)" ]; then return 0; fi # another Hawser of this user is there
    dir=$(new_target)
    make_stand_in "$dir" "mkdir -p $place; exit 3"
    start_run "$dir"
    wait $run_pid || true
    [ ! -e "$place" ]
}

starts_no_server_for_a_database_url() {
    local dir
    dir=$(new_target)
    make_stand_in "$dir"
    start_run "$dir" DATABASE_URL=postgres://u:pw@db.invalid/app POOL_SIZE=7
    grep -q '^    psql postgres://u@127.0.0.1:[0-9]*/app$' "$dir/out"
    refutes grep -q pw "$dir/out"
    grep -q -- '--pool-size 7 HAWSER_SERVER_URL=postgres://u:pw@db.invalid/app$' "$dir/told"
    [ -z "$(ls "$dir/tmp")" ]
    kill $run_pid
    wait $run_pid || true
    leaves_nothing "$dir"
}

# ---- set-up ----------------------------------------------------------------------------------

# A PATH of its own: the barest tools, and `id` saying that this is not root.
bare_machine() { # bare_machine DIR
    local tool
    mkdir -p "$1"
    for tool in bash env dirname sed cut sort head tail grep mktemp cat touch apt-cache apt-get; do
        if command -v $tool >/dev/null; then ln -sf "$(command -v $tool)" "$1/$tool"; fi
    done
    stand_in "$1/id" 'echo 1000'
}

stand_in() { # stand_in FILE SCRIPT
    printf '#!%s\n%s\n' "$(command -v bash)" "$2" >"$1"
    chmod +x "$1"
}

set_up_on() { # set_up_on DIR PURPOSE: prints what it says, and gives its exit code
    env -i HOME="$scratch/no-home" PATH="$1" bash scripts/setup.sh "$2" >"$1.log" 2>&1 </dev/null ||
        echo "exit code $?" >>"$1.log"
    cat "$1.log"
}

# Without rights and without a terminal it must stop and name the command, not half-install.
stops_with_the_command_to_type() {
    local bin=$scratch/bare
    bare_machine "$bin"
    set_up_on "$bin" build
    grep -q 'apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev' "$bin.log"
    grep -q '^exit code 1$' "$bin.log"
}

# An old rustup's proxies download at any call: they must not be called before that is announced.
announces_a_toolchain_before_it_is_fetched() {
    local bin=$scratch/old-rustup
    bare_machine "$bin"
    stand_in "$bin/cc" true
    stand_in "$bin/cargo" "[ -e $bin/installed ] || echo 'cargo was called too early' >&2
echo 'cargo 1.999.0 (0123456 2030-01-01)'"
    stand_in "$bin/rustup" "case \"\$*\" in
'toolchain list') echo stable-any; [ ! -e $bin/installed ] || echo '$channel-any' ;;
'toolchain install $channel '*) echo fetching >&2; touch $bin/installed ;;
*) exit 1 ;;
esac"
    set_up_on "$bin" build
    equal "$(grep -o -e 'Rust [0-9.]* with clippy' -e fetching -e 'too early' -e 'exit code' "$bin.log")" \
        "Rust $channel with clippy"$'\n'fetching
    set_up_on "$bin" build
    equal "$(cat "$bin.log")" "" # and a second time there is nothing to do
}

# ---- PostgreSQL's source ---------------------------------------------------------------------

source_on() { # source_on DIR [NAME=VALUE]...: standard output, then the exit code
    local bin=$1
    shift
    env -i HOME="$scratch/no-home" PATH="$bin" "$@" bash scripts/postgres_source.sh 99 2>"$bin.log" </dev/null ||
        echo "exit code $?"
}

a_source_that_is_there_is_taken_and_one_that_cannot_be_had_says_why() {
    local bin=$scratch/sourceless
    bare_machine "$bin"
    rm -f "$bin/apt-get"
    equal "$(source_on "$bin")" "exit code 1"
    grep -q 'no apt-get here: POSTGRES_SOURCE may name the source of PostgreSQL 99' "$bin.log"
    mkdir -p "$bin-tree/src/test/regress"
    equal "$(source_on "$bin" POSTGRES_SOURCE="$bin-tree")" "$bin-tree"
    equal "$(source_on "$bin" POSTGRES_SOURCE="$bin")" "exit code 1"
    grep -q 'holds no src/test/regress' "$bin.log"
}

# ---- the laboratory's kernel -------------------------------------------------------------------

an_option_that_a_kernel_lacks_is_named() {
    . scripts/lab_kernel.sh
    { echo "# a comment"; grep -v '^CONFIG_RDS=y$' "$wanted"; } >"$scratch/config"
    equal "$(missing_options "$scratch/config")" "CONFIG_RDS=y"
    equal "$(missing_options "$wanted")" ""
}

a_kernel_that_cannot_be_built_says_why() {
    local bin=$scratch/kernelless said=$scratch/kernelless.log program
    bare_machine "$bin"
    for program in uname mkdir rm; do ln -sf "$(command -v $program)" "$bin/$program"; done
    rm -f "$bin/apt-get"
    for program in cc make flex bison bc perl xz; do stand_in "$bin/$program" true; done
    # A place of its own: a kernel that was built here is to be left alone.
    mkdir -p "$scratch/repository"
    cp -r scripts rust-toolchain.toml "$scratch/repository"
    refutes env -i HOME="$scratch/no-home" PATH="$bin" LINUX_SOURCE=linux-source-9.9 \
        bash "$scratch/repository/scripts/lab_kernel.sh" >"$said" 2>&1 </dev/null
    cat "$said"
    grep -q 'no apt-get here: LINUX_SOURCE may name a source tree' "$said"
}

a_suite_that_cannot_run_is_a_skip_with_its_reason() {
    # The last line of standard error is the reason that is shown.
    local said
    if said=$(tests/regress/run.py --ready --pg-config "$scratch/no-pg-config" 2>&1 >/dev/null); then return 1; fi
    grep -q 'cannot run: .*no-pg-config does not work' <<<"$said"
}

# ---- Python's rules --------------------------------------------------------------------------

ruff_that_is_here_is_taken_and_one_that_cannot_be_had_is_said() {
    local bin=$scratch/ruffless status=0
    bare_machine "$bin"
    stand_in "$bin/python3" "exit 1"
    ruff_on() { env -i HOME="$scratch/no-home" PATH="$bin" CARGO_TARGET_DIR="$bin-target" bash scripts/ruff.sh 2>"$bin.log"; }
    ruff_on || status=$?
    equal "$status" 69
    grep -q 'error: ruff .* cannot be had' "$bin.log"
    stand_in "$bin/ruff" "[ \"\$1\" = check ] && echo checked || echo ruff $(sed -n 's/^version=//p' scripts/ruff.sh)"
    equal "$(ruff_on)" checked
}

scripts_are_clean() { shellcheck -x .ci/run scripts/*.sh; }

proves "sums all test programs" sums_all_test_programs
proves "waits for a build that was begun before" waits_for_what_was_begun
proves "tells what each step took" tells_what_each_step_took
proves "raises its own limit of descriptors" raises_its_own_limit_of_descriptors
proves "names what failed, whichever program says so" names_what_failed
proves "names what passed the second time" names_what_passed_the_second_time
proves "fails a run with many flaky tests" fails_a_run_with_many_flaky_tests
proves "runs a failed test of cargo once more" runs_a_failed_test_of_cargo_once_more
proves "takes only a line that is a count" takes_only_a_line_that_is_a_count
proves "a program that dies or counts nothing is a failure" counts_faults
proves "a second server that cannot be had is skipped, with the reason" \
    a_second_server_that_is_not_to_be_had_is_a_skip_with_its_reason
proves "shows an address without a password" shows_an_address_without_a_password
if command -v apt-get >/dev/null; then
    proves "set-up without rights names the command" stops_with_the_command_to_type
else
    skips "set-up without rights names the command" "no apt here"
fi
proves "a toolchain is announced before it is fetched" announces_a_toolchain_before_it_is_fetched
proves "PostgreSQL's source: what is there is taken, what cannot be had says why" \
    a_source_that_is_there_is_taken_and_one_that_cannot_be_had_says_why
proves "ruff that is here is taken, one that cannot be had is said" \
    ruff_that_is_here_is_taken_and_one_that_cannot_be_had_is_said
proves "an option that the laboratory's kernel lacks is named" an_option_that_a_kernel_lacks_is_named
proves "a kernel that cannot be built says why" a_kernel_that_cannot_be_built_says_why
if needs_python; then
    proves "a suite that cannot run says why" a_suite_that_cannot_run_is_a_skip_with_its_reason
    proves "skips a port that is taken" skips_a_port_that_is_taken
else
    skips "a suite that cannot run says why" "no Python here"
    skips "skips a port that is taken" "no Python here"
fi
if needs_postgres; then
    proves "a throw-away PostgreSQL starts and leaves nothing" starts_and_leaves_nothing
    proves "a throw-away PostgreSQL wants its password" refuses_without_the_password
    proves "make run ends clean on Ctrl-C" ends_clean_on INT 130
    proves "make run ends clean on SIGTERM" ends_clean_on TERM 143
    proves "make run leaves no process when it is killed" leaves_no_process_when_killed
    proves "make run ends clean when the program dies" ends_clean_when_the_program_dies
    proves "make run starts no server for DATABASE_URL" starts_no_server_for_a_database_url
    proves "make run removes the empty directory of its control socket" removes_the_empty_directory_of_the_control_socket
else
    skips "throw-away PostgreSQL and make run" "no PostgreSQL server here"
fi
if command -v shellcheck >/dev/null; then
    proves "shellcheck finds nothing" scripts_are_clean
else
    skips "shellcheck finds nothing" "shellcheck is not installed"
fi

printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
