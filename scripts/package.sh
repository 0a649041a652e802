#!/usr/bin/env bash
# `make package`: what operators install, in target/package.
#
#   hawser_VERSION_ARCH.deb               the program, its unit, socket, user and configuration
#   postgresql-NN-hawser_VERSION_ARCH.deb the extension, for the PostgreSQL of $PG_CONFIG
#   hawser-static-ARCH                    the program without libraries, for images
#   hawser-image-ARCH.tar                 an OCI image of it, written without docker
#   hawser.cdx.json                       the SBOM: what the program is linked from (CycloneDX)
#
# scripts/package.sh [deb] [extension] [static] [image] [sbom]; without arguments all of them.
#
# ARCH=arm64 (or amd64) builds the program for another architecture, where rustup has its target and
# the cross compiler is here. The extension is built for the host only: it needs that server's headers.
# $HAWSER is a program to package in place of the one that would be built, $PACKAGE_DIR another place
# for what is made. What cannot be built is said as "NOT BUILT", and the exit code is 1 unless it was only tried because
# everything was.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

out=${PACKAGE_DIR:-$target/package}
work=$out/build
version=$(sed -n 's/^version *= *"\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ -n "$version" ] || die "Cargo.toml has no version"
# What is built twice from one commit is the same, byte by byte, as far as the compiler allows.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

have() { command -v "$1" >/dev/null 2>&1; }
not_built() { printf 'NOT BUILT: %s\n' "$*" >&2; }

case $(uname -m) in
x86_64) host=amd64 ;;
aarch64) host=arm64 ;;
*) die "packages are built on x86_64 and aarch64, and this is $(uname -m)" ;;
esac
arch=${ARCH:-$host}
case $arch in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) die "ARCH is amd64 or arm64, not $arch" ;;
esac

# ---- the compiler's target ----------------------------------------------------------------------

rust_has() { [ -d "$(rustc --print sysroot)/lib/rustlib/$1/lib" ]; }

# Says why the program cannot be built for $machine-unknown-linux-$1, or nothing.
lacks() { # lacks gnu|musl
    local triple=$machine-unknown-linux-$1
    rust_has "$triple" || { echo "the toolchain has no target $triple (rustup target add $triple)"; return; }
    if [ "$arch" != "$host" ] && ! have "$machine-linux-$1-gcc"; then
        echo "no $machine-linux-$1-gcc (Debian: gcc-${machine/x86_64/x86-64}-linux-gnu)"
    elif [ "$1" = musl ] && [ "$arch" = "$host" ] && ! have musl-gcc; then
        echo "no musl-gcc (Debian: musl-tools)"
    fi
}

# cross TRIPLE: cargo's and cc's names for the cross compiler, where one is needed.
cross() {
    [ "$arch" != "$host" ] || return 0
    local name=${1//-/_} compiler
    compiler=$machine-linux-${1##*-}-gcc
    export "CC_$name=$compiler" "CARGO_TARGET_$(tr '[:lower:]' '[:upper:]' <<<"$name")_LINKER=$compiler"
}

strip_of() { if [ "$arch" = "$host" ]; then echo strip; else echo "$machine-linux-gnu-strip"; fi; }

# ---- the program --------------------------------------------------------------------------------

program() { # prints where the program for $arch is
    if [ -n "${HAWSER:-}" ]; then
        echo "$HAWSER"
    elif [ "$arch" = "$host" ]; then
        cargo build --release --locked -p hawser >&2
        echo "$target/release/hawser"
    else
        local triple=$machine-unknown-linux-gnu
        cross "$triple"
        cargo build --release --locked -p hawser --target "$triple" >&2
        echo "$target/$triple/release/hawser"
    fi
}

# described DIRECTORY: manual pages and completions, by the program itself: one that runs here.
described() {
    local program=${HAWSER:-} section page
    if [ -z "$program" ]; then
        cargo build --release --locked -p hawser >&2
        program=$target/release/hawser
    fi
    mkdir -p "$work/man" "$1/bash-completion/completions" "$1/zsh/vendor-completions" "$1/fish/vendor_completions.d"
    "$program" man "$work/man"
    for page in "$work"/man/*; do
        section=man${page##*.}
        mkdir -p "$1/man/$section"
        gzip -9n <"$page" >"$1/man/$section/$(basename "$page").gz"
    done
    "$program" completions bash >"$1/bash-completion/completions/hawser"
    "$program" completions zsh >"$1/zsh/vendor-completions/_hawser"
    "$program" completions fish >"$1/fish/vendor_completions.d/hawser.fish"
}

# The newest version of glibc of which the program has a symbol.
glibc_of() { objdump -T "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -Vu | tail -n 1; }

# control DIRECTORY NAME DEPENDS SUMMARY: DEBIAN/control, with the description from standard input.
control() {
    mkdir -p "$1/DEBIAN"
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$2" "$version" "$arch"
        printf 'Maintainer: The Hawser developers <hawser@users.noreply.github.com>\n'
        printf 'Installed-Size: %s\n' "$(du -sk --exclude=DEBIAN "$1" | cut -f1)"
        printf 'Depends: %s\nSection: database\nPriority: optional\n' "$3"
        printf 'Homepage: https://github.com/hawser/hawser\nDescription: %s\n' "$4"
        cat
    } >"$1/DEBIAN/control"
}

packed() { # packed DIRECTORY NAME
    (cd "$1" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
    find "$1" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$1" "$out/$2_${version}_$arch.deb" >&2
}

documents() { # documents DIRECTORY: copyright and changelog
    install -D -m 644 packaging/debian/copyright "$1/copyright"
    gzip -9n <CHANGELOG.md >"$1/changelog.gz"
    chmod 644 "$1/changelog.gz"
}

deb() {
    local reason root=$work/hawser-$arch built
    have dpkg-deb || { not_built "the packages: no dpkg-deb here"; return 1; }
    reason=$(lacks gnu)
    [ -z "$reason" ] || [ -n "${HAWSER:-}" ] || { not_built "hawser_${version}_$arch.deb: $reason"; return 1; }
    built=$(program)
    rm -rf "$root"
    install -D -m 755 "$built" "$root/usr/bin/hawser"
    "$(strip_of)" --strip-all "$root/usr/bin/hawser"
    mkdir -p "$root/usr/lib/hawser"
    ln -s ../../bin/hawser "$root/usr/lib/hawser/pgbouncer"
    install -D -m 644 -t "$root/usr/lib/systemd/system" packaging/hawser.service packaging/hawser.socket packaging/hawser-link@.service
    install -D -m 644 packaging/hawser.sysusers "$root/usr/lib/sysusers.d/hawser.conf"
    install -D -m 644 packaging/hawser.toml "$root/etc/hawser/hawser.toml"
    described "$root/usr/share"
    documents "$root/usr/share/doc/hawser"
    sbom_to "$root/usr/share/doc/hawser/hawser.cdx.json"
    (cd docs && find . -name '*.md' -o -path './images/*') | while read -r page; do
        install -D -m 644 "docs/$page" "$root/usr/share/doc/hawser/docs/$page"
    done
    install -D -m 644 -t "$root/usr/share/doc/hawser" packaging/grafana/hawser.json packaging/prometheus/alerts.yml
    control "$root" hawser "libc6 (>= $(glibc_of "$built")), passwd" "connection pooler for PostgreSQL" <<'END'
 A replacement for PgBouncer: transaction pooling in which SET, LISTEN,
 prepared statements and temporary tables keep working. It takes
 PgBouncer's configuration, by "hawser import" or as it is.
END
    install -m 755 -t "$root/DEBIAN" packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm
    echo /etc/hawser/hawser.toml >"$root/DEBIAN/conffiles"
    find "$root" -type d -exec chmod 755 {} +
    packed "$root" hawser
}

extension() {
    local config major root sources=$work/extension
    config=$(pg_config_program)
    have dpkg-deb || { not_built "the packages: no dpkg-deb here"; return 1; }
    [ "$arch" = "$host" ] || { not_built "the extension for $arch: it is built on a host of that architecture"; return 1; }
    [ -e "$("$config" --includedir-server 2>/dev/null)/postgres.h" ] ||
        { not_built "the extension: no headers of PostgreSQL (Debian: postgresql-server-dev-NN)"; return 1; }
    major=$("$config" --version | sed -n -E 's/^PostgreSQL ([0-9]+).*/\1/p')
    root=$work/postgresql-$major-hawser
    rm -rf "$root" "$sources"
    mkdir -p "$sources"
    cp extension/*.c extension/*.h extension/*.sql extension/*.control extension/Makefile "$sources"
    # Without LLVM's bitcode: nothing of the extension is worth inlining, and it needs that version's clang.
    make --no-print-directory -C "$sources" PG_CONFIG="$config" with_llvm=no >&2
    make --no-print-directory -C "$sources" PG_CONFIG="$config" with_llvm=no DESTDIR="$root" install >&2
    find "$root" -name '*.so' -exec strip --strip-unneeded {} + -exec chmod 644 {} +
    documents "$root/usr/share/doc/postgresql-$major-hawser"
    install -m 644 docs/extension.md "$root/usr/share/doc/postgresql-$major-hawser/extension.md"
    control "$root" "postgresql-$major-hawser" "postgresql-$major, libc6" "session state for the pooler Hawser" <<'END'
 The extension "hawser" of PostgreSQL: it reports what a session holds,
 so that Hawser knows what functions and triggers do, and lets users
 share server connections. The package hawser has the pooler.
END
    find "$root" -type d -exec chmod 755 {} +
    packed "$root" "postgresql-$major-hawser"
}

# Without any library. musl's target where the toolchain has it, else glibc's: names are then resolved by
# /etc/hosts and DNS alone, as with musl.
static() {
    local triple=$machine-unknown-linux-musl reason
    reason=$(lacks musl)
    if [ -n "$reason" ]; then
        say "static by glibc: $reason"
        triple=$machine-unknown-linux-gnu
        reason=$(lacks gnu)
        [ -z "$reason" ] || { not_built "hawser-static-$arch: $reason"; return 1; }
    fi
    cross "$triple"
    # Not below target/release: these flags would build everything there anew at each change of them.
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked -p hawser \
        --target "$triple" --target-dir "$target/static" >&2
    install -D -m 755 "$target/static/$triple/release/hawser" "$out/hawser-static-$arch"
    "$(strip_of)" --strip-all "$out/hawser-static-$arch"
}

image() {
    if [ ! -e "$out/hawser-static-$arch" ]; then static; fi
    scripts/image.py "$out/hawser-static-$arch" "$arch" "$version" "$out/hawser-image-$arch.tar"
}

sbom_to() {
    mkdir -p "$(dirname "$1")"
    cargo xtask sbom "$machine" >"$1"
    chmod 644 "$1"
}
sbom() { sbom_to "$out/hawser.cdx.json"; }

parts=("$@")
failed=0
[ "${#parts[@]}" -gt 0 ] || parts=(deb extension static image sbom)
mkdir -p "$work"
for part in "${parts[@]}"; do
    case $part in
    deb | extension | static | image | sbom) say "$part, $arch" ;;
    *) die "usage: scripts/package.sh [deb] [extension] [static] [image] [sbom]" ;;
    esac
    # Not `"$part" || failed=1`: there bash goes on after what fails within, and packages what is left.
    set +e
    (set -e; "$part")
    [ "$?" = 0 ] || failed=1
    set -e
done
# The other architecture, once it can be.
if [ $# = 0 ] && [ -z "${ARCH:-}" ]; then
    other=arm64
    [ "$host" = amd64 ] || other=amd64
    if ARCH=$other "${BASH_SOURCE[0]}" deb; then :; else
        not_built "packages for $other; build them on a host of that architecture, or see above"
    fi
fi
rm -rf "$work"
ls -l "$out" >&2
exit $failed
