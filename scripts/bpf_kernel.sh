#!/usr/bin/env bash
# A kernel with RDS and TLS, and with BPF that nothing forbids, for the tests of `make test-kernel`:
# a package of the distribution, of which the kernel and its modules are kept in
# .run/bpf-kernel (20 MB). Nothing is installed, and no rights are needed.
# tests/harness/emulator.py boots it in an emulator (qemu-system-x86, whose package has
# virtiofsd in Debian 12; later a package of that name).
#
#   $LINUX_IMAGE   the package [default: the newest linux-image-*-cloud-amd64 of 6.6 or later that apt has]
set -euo pipefail
# shellcheck source=scripts/env.sh
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"

place=$root/.run/bpf-kernel
modules=(drivers/net/veth net/ipv4/inet_diag net/ipv4/tcp_diag net/mptcp/mptcp_diag
    net/core/failover drivers/net/net_failover drivers/net/virtio_net net/rds/rds net/rds/rds_tcp
    net/tls/tls crypto/crypto_null lib/crypto/gf128mul crypto/ghash-generic crypto/gcm lib/crypto/libchacha crypto/chacha_generic
    lib/crypto/libpoly1305 crypto/poly1305_generic crypto/chacha20poly1305)

# newest_image: kernels for clouds have virtiofs built in.
newest_image() {
    local package
    for package in $(apt-cache pkgnames linux-image- 2>/dev/null |
        grep -E '^linux-image-(6\.([6-9]|[1-9][0-9])|[7-9])[0-9.]*[^ ]*-cloud-amd64(-unsigned)?$' | sort -t- -k3 -rV); do
        # Not `grep -q`: see lab_kernel.sh.
        if apt-cache policy "$package" 2>/dev/null | grep '^  Candidate: [^(]' >/dev/null; then
            printf '%s\n' "$package"
            return
        fi
    done
}

image=${LINUX_IMAGE:-$(newest_image)}
[ -n "$image" ] || die "apt knows no linux-image-*-cloud-amd64 of Linux 6.6 or later; after \`apt-get update\` it may, and backports have some"
rm -rf "$place"
mkdir -p "$place/package"
say "fetching $image (about 35 MB) into $place"
options=(-o Acquire::Retries=2)
if [ "$(id -u)" = 0 ]; then options+=(-o APT::Sandbox::User=root); fi
(cd "$place" && apt-get "${options[@]}" -q download "$image" >&2) || die "apt-get could not fetch $image"
dpkg-deb -x "$place"/*.deb "$place/package" || die "$image cannot be unpacked"
cp "$place"/package/boot/vmlinuz-* "$place/vmlinuz"
for module in "${modules[@]}"; do
    file=$(echo "$place"/package/lib/modules/*/kernel/"$module".ko* "$place"/package/usr/lib/modules/*/kernel/"$module".ko* | tr ' ' '\n' | grep -v '\*' | head -1)
    case $file in
    *.xz) xz -dc "$file" >"$place/$(basename "$module").ko" ;;
    *.zst) zstd -qdc "$file" >"$place/$(basename "$module").ko" ;;
    *.ko) cp "$file" "$place/" ;;
    *) die "$image has no module $module" ;;
    esac
done
rm -rf "$place/package" "$place"/*.deb
say "$image is in $place"
