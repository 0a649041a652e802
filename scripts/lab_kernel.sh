#!/usr/bin/env bash
# The kernel of bench/congestion/algorithms.py, by `make lab-kernel`: a user-mode Linux with all congestion
# control algorithms, netem, MPTCP and RDS, of the distribution's kernel source. The last line on
# standard output is the program; where it is not to be had, the exit code is 1 and the last line on
# standard error says why.
#
#   $LINUX_SOURCE   a package (linux-source-6.12) or a source tree [default: the newest that apt has]
#   $JOBS           compilers at a time [default: one for each processor]
#
# All of it goes below .run/lab-kernel: 150 MB are fetched and 2 GB written while it is built, of
# which 10 MB stay. Nothing of it is installed, and no rights are needed but for compilers that are
# missing.
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

place=$root/.run/lab-kernel
wanted=$root/scripts/lab_kernel.config

# newest_source: of linux-source-N.M, as far as apt has lists.
newest_source() {
    local package
    for package in $(apt-cache pkgnames linux-source- 2>/dev/null | grep -E '^linux-source-[0-9]+\.[0-9]+$' | sort -t- -k3 -rV); do
        # Not `grep -q`, which leaves before apt-cache has said all: by SIGPIPE and pipefail it has none then.
        if apt-cache policy "$package" 2>/dev/null | grep '^  Candidate: [^(]' >/dev/null; then
            printf '%s\n' "$package"
            return
        fi
    done
}

# missing_options FILE: what is asked for in lab_kernel.config and is not in a configuration.
missing_options() {
    grep '^CONFIG_' "$wanted" | grep -vxFf "$1" || true
}

# unpack PACKAGE: its source tree, below $place/source.
unpack() {
    local archive
    command -v apt-get >/dev/null || die "no apt-get here: LINUX_SOURCE may name a source tree of Linux"
    say "fetching $1 (about 150 MB) into $place"
    # apt-get download is for anybody; as root, apt fetches as a user who may not write here.
    local options=(-o Acquire::Retries=2)
    if [ "$(id -u)" = 0 ]; then options+=(-o APT::Sandbox::User=root); fi
    (cd "$place" && apt-get "${options[@]}" -q download "$1" >&2) || die "apt-get could not fetch $1"
    dpkg-deb --fsys-tarfile "$place/$1"_*.deb | tar -x -C "$place" --wildcards './usr/src/*.tar.*' ||
        die "$1 cannot be unpacked"
    rm -f "$place/$1"_*.deb
    archive=$(echo "$place"/usr/src/*.tar.*)
    mkdir -p "$place/source"
    tar -xf "$archive" -C "$place/source" --strip-components=1 || die "$archive cannot be unpacked"
    rm -rf "$place/usr"
}

build() { # build TREE
    local missing objects=$place/objects
    rm -rf "$objects"
    mkdir -p "$objects"
    make -s -C "$1" O="$objects" ARCH=um defconfig >&2 || die "$1 cannot be configured: is it a source tree of Linux?"
    cat "$wanted" >>"$objects/.config"
    # It warns of each option that the defconfig had another way.
    make -s -C "$1" O="$objects" ARCH=um olddefconfig >"$place/log" 2>&1 || die "$(tail -n 1 "$place/log")"
    missing=$(missing_options "$objects/.config")
    # UML_MAX_USERSPACE_ITERATIONS came with Linux 6.10; nothing else may be absent.
    missing=$(grep -v '^CONFIG_UML_MAX_USERSPACE_ITERATIONS=' <<<"$missing" || true)
    [ -z "$missing" ] || die "this source has no $(paste -sd' ' <<<"$missing")"
    make -s -C "$1" O="$objects" ARCH=um -j"${JOBS:-$(nproc)}" linux >"$place/log" 2>&1 ||
        die "the kernel cannot be built; $place/log says why: $(grep -m1 -E 'rror' "$place/log" || tail -n 1 "$place/log")"
    strip -o "$place/linux.new" "$objects/linux"
    cc -shared -fPIC -O2 -o "$place/xsave.so" "$root/scripts/lab_kernel_xsave.c"
    cp "$objects/.config" "$place/config"
    mv "$place/linux.new" "$place/linux"
    rm -rf "$objects"
}

lab_kernel() {
    local tree=${LINUX_SOURCE:-} began=$SECONDS
    [ "$(uname -m)" = x86_64 ] || die "user-mode Linux is for x86_64; this is $(uname -m)"
    if [ -x "$place/linux" ] && [ -z "$tree" ] && [ -e "$place/config" ] &&
        [ -z "$(missing_options "$place/config" | grep -v ITERATIONS || true)" ]; then
        say "it is built already; to build it again: rm -r $place"
        printf '%s\n' "$place/linux"
        return
    fi
    scripts/setup.sh kernel
    mkdir -p "$place"
    if [ ! -d "${tree:-/nonexistent}" ]; then
        tree=${tree:-$(newest_source)}
        [ -n "$tree" ] || die "apt knows no linux-source-N.M; after \`apt-get update\` it may"
        rm -rf "$place/source" "$place/usr"
        unpack "$tree"
        tree=$place/source
    fi
    say "building (some minutes; the compiler's words are in $place/log)"
    build "$tree"
    rm -rf "$place/source"
    say "Linux $("$place/linux" --version), $(du -h "$place/linux" | cut -f1), in $(((SECONDS - began) / 60)) min $(((SECONDS - began) % 60)) s"
    printf '%s\n' "$place/linux"
}

# Sourced by its tests.
if [ "${BASH_SOURCE[0]}" = "$0" ]; then lab_kernel; fi
