#!/bin/bash
# Installs what is missing for building ("build", the default), for building and testing ("test"), or for those and the whole matrix
# of programs ("matrix"; Debian's PostgreSQL then starts a server, as its package does).
# Touches apt-get only if a tool is missing, as root or through sudo.
set -euo pipefail

# tool:package, as Debian and Ubuntu name them; or a file:package
build_tools=(cc:gcc)
test_tools=(
    fio:fio
    nbdinfo:libnbd-bin
    nbdcopy:libnbd-bin
    nbdfuse:libnbd-bin
    nbdkit:nbdkit
    qemu-img:qemu-utils
    qemu-io:qemu-utils
    qemu-system-x86_64:qemu-system-x86
    busybox:busybox-static
    depmod:kmod
    nvme:nvme-cli
    mkfs.xfs:xfsprogs
    mkfs.ext4:e2fsprogs
    ip:iproute2
    curl:curl
    jq:jq
    python3:python3
    pkg-config:pkg-config
    c++:g++
    sqlite3:sqlite3
    redis-server:redis-server
    redis-cli:redis-tools
    redis-benchmark:redis-tools
    db_bench:rocksdb-tools
    valgrind:valgrind
    /usr/include/rocksdb/c.h:librocksdb-dev
    /usr/lib/$(uname -m)-linux-gnu/libjemalloc.so.2:libjemalloc2
    bpftrace:bpftrace
    mkfs.btrfs:btrfs-progs
    losetup:mount
    git:git
    tar:tar
    setpriv:util-linux
    etcd:etcd-server
    etcdctl:etcd-client
)
matrix_tools=(
    tclsh:tcl
    /usr/include/leveldb/c.h:libleveldb-dev
    /usr/lib/postgresql:postgresql
    mariadbd:mariadb-server-core
    mariadb:mariadb-client-core
    java:default-jdk-headless
    javac:default-jdk-headless
    node:nodejs
    rsync:rsync
    gdb:gdb
)

fail() {
    echo "deps: $*" >&2
    exit 1
}

case "${1:-build}" in
build) tools=("${build_tools[@]}") ;;
test) tools=("${build_tools[@]}" "${test_tools[@]}") ;;
matrix) tools=("${build_tools[@]}" "${test_tools[@]}" "${matrix_tools[@]}") ;;
*) fail "usage: scripts/deps.sh [build|test|matrix]" ;;
esac

# File system tools live in sbin, which an ordinary user's PATH may lack.
PATH="$PATH:/usr/sbin:/sbin"

missing_tools() {
    local entry
    for entry in "${tools[@]}"; do
        [[ $entry == /* && -e ${entry%%:*} ]] || command -v "${entry%%:*}" >/dev/null || echo "$entry"
    done
}

command -v cargo >/dev/null || fail "no Rust toolchain: get one from https://rustup.rs" \
    "(curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh), open a new shell and try again"

mapfile -t missing < <(missing_tools)
[ "${#missing[@]}" -eq 0 ] && exit 0

mapfile -t packages < <(printf '%s\n' "${missing[@]#*:}" | sort -u)
command -v apt-get >/dev/null ||
    fail "missing tools: ${missing[*]%%:*}; install them with your system's package manager (Debian: ${packages[*]})"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "as root, run: apt-get install ${packages[*]}"
    as_root=(sudo)
fi

echo "deps: installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y --no-install-recommends "${packages[@]}")
"${install[@]}" || { "${as_root[@]}" apt-get update && "${install[@]}"; } || fail "apt-get could not install ${packages[*]}"

mapfile -t missing < <(missing_tools)
[ "${#missing[@]}" -eq 0 ] || fail "still missing after the installation: ${missing[*]%%:*}"
