#!/usr/bin/env bash
# Installs what is missing, and nothing else: `scripts/setup.sh build|check|run|test|regress|kernel|emulator|all`.
#
#   build  compiler and Rust toolchain
#   check  build, and Python 3 with venv, into which scripts/ruff.sh installs ruff
#   run    build, and a PostgreSQL server unless $DATABASE_URL names one
#   demo   build, and a PostgreSQL server
#   test   demo, and Python 3
#   bench  test, and PgBouncer to compare with, unless $PGBOUNCER names one
#   regress    test, and what PostgreSQL's own suites are built and run with
#   extension  test, and what builds extensions of that PostgreSQL
#   kernel what builds the kernel of bench/congestion/algorithms.py; no Rust
#   emulator   test, and what runs the kernel of `make bpf-kernel` in an emulator
#   all    regress, extension, PL/Perl, etcd, programs that are run over MPTCP and the link (rsync, sshd, MariaDB,
#          stunnel), and the languages whose drivers are tested: Go, Java with Maven, Node, PHP
#
# Packages come from the system's own manager (apt), the toolchain from rustup. On a terminal it
# asks first; without one it goes ahead where it has the right to, else it stops with the command
# to type. CI=true or ASSUME_YES=1 never asks. What is there already costs nothing: no network is
# touched when nothing is missing.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

purpose=${1:-build}
case $purpose in
build | check | run | demo | test | bench | regress | extension | kernel | emulator | all) ;;
*) die "usage: scripts/setup.sh build|check|run|demo|test|bench|regress|extension|kernel|emulator|all" ;;
esac

channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
[ -n "$channel" ] || die "rust-toolchain.toml names no channel"

have() { command -v "$1" >/dev/null 2>&1; }

# Whether the cargo in PATH builds this workspace, found out without a download: what is fetched is
# announced first. Before 1.28 rustup's proxies fetched a missing toolchain at any call, so rustup
# is asked before cargo is.
cargo_works() {
    local version
    have cargo || return 1
    if have rustup && [ -z "${RUSTUP_TOOLCHAIN:-}" ]; then
        rustup toolchain list 2>/dev/null | grep "^$channel" >/dev/null || return 1
    fi
    version=$(RUSTUP_AUTO_INSTALL=0 cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
    [ -n "$version" ] || return 1
    [ "$(printf '%s\n' "$channel" "$version" | sort -V | head -n 1)" = "$channel" ] || return 1
    # Both components of rust-toolchain.toml, too: a minimal toolchain has neither.
    cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

packages=()
plan=()
need() { # need REASON PACKAGE...
    plan+=("$1: ${*:2}")
    packages+=("${@:2}")
}

# ---- what is missing -------------------------------------------------------------------------

have cc || need "a C compiler and linker" gcc libc6-dev

if [ "$purpose" = kernel ]; then
    have make || need "make, for the kernel" make
    have flex || need "flex, for the kernel's configuration" flex
    have bison || need "bison, for the kernel's configuration" bison
    have bc || need "bc, for the kernel's constants" bc
    have perl || need "perl, for the kernel's scripts" perl
    have xz || need "xz, in which its source is packed" xz-utils
fi
if [ "$purpose" != build ] && [ "$purpose" != check ] && [ "$purpose" != kernel ] && [ -z "$(postgres_bin)" ]; then
    if [ "$purpose" != run ] || [ -z "${DATABASE_URL:-}" ]; then
        need "a PostgreSQL server (Debian's package also starts one on port 5432, which nothing here uses)" \
            postgresql
    fi
fi
case $purpose in
check | test | bench | regress | extension | emulator | all)
    have python3 || need "Python 3" python3
    ;;
esac
if [ "$purpose" = check ] || [ "$purpose" = all ]; then
    # Debian splits venv's ensurepip into a package of its own.
    python3 -c 'import ensurepip, venv' >/dev/null 2>&1 || need "Python's venv" python3-venv
fi
if [ "$purpose" = emulator ]; then
    have qemu-system-x86_64 || need "an emulator, for another kernel" qemu-system-x86
    # In Debian 12 it comes with the emulator.
    [ -x /usr/libexec/virtiofsd ] || have virtiofsd || grep -q '^VERSION_CODENAME=bookworm' /etc/os-release ||
        need "virtiofsd, for its files" virtiofsd
    have insmod || have busybox || need "a program that loads modules into it" busybox-static
    have ip || need "iproute2, for its networks" iproute2
fi
if [ "$purpose" = bench ] && [ -z "${PGBOUNCER:-}" ]; then
    # Debian keeps it where only root's PATH leads.
    have pgbouncer || [ -x /usr/sbin/pgbouncer ] || need "PgBouncer, to compare with" pgbouncer
fi
case $purpose in
regress | extension | all)
    have make || need "make, for the extension" make
    # Of the server that is here, or of the one that is installed with it. The tests that PostgreSQL
    # brings (pg_regress) are in the same package.
    headers=$("$(pg_config_program)" --includedir-server 2>/dev/null || true)
    tests=$("$(pg_config_program)" --pgxs 2>/dev/null | sed 's#/makefiles/.*#/test#' || true)
    if [ ! -e "${headers:-/nonexistent}/postgres.h" ] || [ ! -x "$tests/regress/pg_regress" ]; then
        version=$(postgres_bin | sed -n -E 's,^.*/postgresql/([0-9]+)/bin$,\1,p')
        need "headers and test programs of PostgreSQL, for the extension and its own suites" \
            "postgresql-server-dev-${version:-all}"
    fi
    ;;
esac
if [ "$purpose" = regress ] || [ "$purpose" = all ]; then
    [ -e "$("$(pg_config_program)" --includedir 2>/dev/null)/libpq-fe.h" ] ||
        [ -e /usr/include/postgresql/libpq-fe.h ] ||
        need "libpq's headers, for libpq_pipeline" libpq-dev
fi
if [ "$purpose" = all ]; then
    have go || need "Go, for pgx and lib/pq" golang-go
    have javac || need "Java, for pgjdbc" default-jdk-headless
    have mvn || need "Maven, for pgjdbc" maven
    have node || need "Node, for node-postgres" nodejs
    have npm || need "npm, for node-postgres" npm
    version=$(postgres_bin | sed -n -E 's,^.*/postgresql/([0-9]+)/bin$,\1,p')
    if [ -n "$version" ] && [ ! -e "$("$(pg_config_program)" --pkglibdir 2>/dev/null)/plperl.so" ]; then
        need "PL/Perl, whose functions keep variables" "postgresql-plperl-$version"
    fi
    # Debian's package also starts one, on port 2379, which nothing here uses.
    have etcd || need "etcd, by which poolers share limits" etcd-server
    # Programs that run over MPTCP, between network namespaces, and over the link. Debian keeps sshd
    # where only root's PATH leads.
    have ip || need "iproute2, for network namespaces" iproute2
    have rsync || need "rsync, to run over MPTCP" rsync
    have sshd || [ -x /usr/sbin/sshd ] ||
        need "sshd, to run over MPTCP (Debian's package also starts one, which nothing here uses)" openssh-server
    # What is carried over the link, and what the link is measured beside.
    have mariadbd || [ -x /usr/sbin/mariadbd ] ||
        need "MariaDB, which replicates over the link (Debian's package also starts one, which nothing here uses)" mariadb-server
    have stunnel4 || have stunnel || need "stunnel, beside which the link is measured" stunnel4
    php -m 2>/dev/null | grep -q pdo_pgsql || need "PHP with PDO for PostgreSQL" php-cli php-pgsql
fi

toolchain=present
if [ "$purpose" != kernel ] && ! cargo_works; then
    toolchain=missing
    plan+=("Rust $channel with clippy and rustfmt: by rustup, into ${RUSTUP_HOME:-$HOME/.rustup}")
fi

[ "${#plan[@]}" -gt 0 ] || exit 0

# ---- say it, ask, install --------------------------------------------------------------------

terminal=
if [ -t 0 ] && [ -t 2 ]; then terminal=yes; fi

say "missing here:"
printf '      %s\n' "${plan[@]}" >&2
if [ -n "$terminal" ] && [ -z "${CI:-}${ASSUME_YES:-}" ]; then
    read -r -p "    install? [Y/n] " answer || answer=n
    case $answer in
    '' | [yY]*) ;;
    *) die "nothing installed" ;;
    esac
fi

# as_root COMMAND...; may_be_root says beforehand whether it can work.
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
may_be_root() {
    [ "$(id -u)" = 0 ] || { have sudo && { [ -n "$terminal" ] || sudo -n true 2>/dev/null; }; }
}
packaged() { # packaged NAME: whether apt, as far as it has lists, could install it
    # Not `grep -q`, which leaves before apt-cache has said all: by SIGPIPE and pipefail it could not.
    apt-cache policy "$1" 2>/dev/null | grep '^  Candidate: [^(]' >/dev/null
}

# rustup: the system's package where there is one (Ubuntu 24.04, Debian 13), else rustup's own
# installer, which needs curl and no rights.
rustup_needs() {
    [ $toolchain = missing ] && ! have rustup || return 0
    if packaged rustup; then
        echo rustup
    elif ! have curl; then
        echo curl ca-certificates
    fi
}

if [ "${#packages[@]}" -gt 0 ] || [ -n "$(rustup_needs)" ]; then
    if ! have apt-get; then
        die "no apt-get here. Install by the system's own means, then try again:
    ${packages[*]} $(rustup_needs)"
    elif may_be_root; then
        # A fresh image has no package lists at all, and an old one has stale ones.
        say "apt-get update"
        as_root apt-get update -q >&2 || die "apt-get update failed"
        # Only now is it known whether there is a package of rustup.
        for package in $(rustup_needs); do packages+=("$package"); done
        say "apt-get install ${packages[*]}"
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -q -y --no-install-recommends "${packages[@]}" >&2 ||
            die "apt-get install failed"
    elif [ "${#packages[@]}" -gt 0 ] || ! have curl; then
        sudo=
        if have sudo; then sudo="sudo "; fi
        for package in $(rustup_needs); do packages+=("$package"); done
        die "installing packages needs root, and neither root nor a sudo without a question is here.
Type this${sudo:+ (or have it typed)} as root, then try again:

    ${sudo}apt-get update && ${sudo}apt-get install -y --no-install-recommends ${packages[*]}
"
    fi
fi

if [ $toolchain = missing ]; then
    if ! have rustup; then
        say "rustup, by its own installer"
        installer=$(mktemp)
        # To a file first: a connection cut in the middle must not run half a script.
        # The second address is where the toolchain itself comes from, and has the same script.
        fetched=
        for address in https://sh.rustup.rs https://static.rust-lang.org/rustup/rustup-init.sh; do
            if curl --proto '=https' --tlsv1.2 -fsSL "$address" -o "$installer"; then
                fetched=yes
                break
            fi
        done
        [ -n "$fetched" ] || die "could not fetch rustup's installer; see https://rustup.rs for other ways"
        # The path check refuses to stand beside a distribution's cargo; env.sh puts rustup's first.
        RUSTUP_INIT_SKIP_PATH_CHECK=yes sh "$installer" -y -q --no-modify-path --profile minimal \
            --default-toolchain none >&2 || die "rustup's installer failed"
        rm -f "$installer"
        hash -r
    fi
    say "rustup toolchain install $channel"
    rustup toolchain install "$channel" --profile minimal --component clippy --component rustfmt >&2 ||
        die "rustup could not install Rust $channel"
    cargo_works || die "cargo in PATH ($(command -v cargo || echo none)) is not Rust $channel or later:
    put ${CARGO_HOME:-$HOME/.cargo}/bin first in PATH, or remove the other one"
fi
