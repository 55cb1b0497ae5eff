#!/bin/bash
# Disks with other people's data are refused by name, by everything that formats a block device, and stay as they are.
. "$(dirname "$0")/lib.sh"

PATH="$PATH:/usr/sbin:/sbin"
(( EUID == 0 )) || skip "loop devices need root"
need losetup blkid python3 cmp

image=$work/disk.img
truncate -s 320M "$image"
disk=$(losetup -f --show "$image" 2>"$work/losetup.err") || skip "no loop device: $(tail -1 "$work/losetup.err")"
at_end 'losetup -d "$disk"'

# refused NAME COMMAND…: it fails with the wrong usage's code, says the name, and leaves the disk as it is.
refused() {
    local name=$1 code=0
    shift
    timeout 20 "$@" >"$work/out" 2>&1 || code=$?
    (( code == 2 )) || { cat "$work/out" >&2; fail "$* ended with $code on a disk with $name"; }
    grep -q "holds $name" "$work/out" || { cat "$work/out" >&2; fail "$* does not say $name"; }
    cmp -s "$work/before" "$disk" || fail "$* changed a disk with $name"
}

# each NAME: what formats block devices refuses the present content.
each() {
    echo "· $1"
    sync "$disk"
    cp --sparse=always "$disk" "$work/before"
    refused "$1" "$SWITCHYARD" store format "$disk"
    refused "$1" "$SWITCHYARD" store format "$disk" --erase another
    refused "$1" "$SWITCHYARD" areas --socket "$work/areas.sock" serve --media "$disk" --format
    refused "$1" "$SWITCHYARD" serve --media "vssd:$disk,format" --nbd "127.0.0.1:$nbd_port"
    refused "$1" "$SWITCHYARD" node --id 1 --listen "127.0.0.1:$rack_port" --tor "127.0.0.1:$nbd_port" --media "$disk" --format
}

empty() { blkdiscard --zeroout "$disk" 2>/dev/null || head -c 320M /dev/zero >"$disk"; sync "$disk"; }

for kind in btrfs ext4 xfs; do
    if command -v "mkfs.$kind" >/dev/null; then
        empty
        "mkfs.$kind" "$disk" >/dev/null 2>&1 || fail "mkfs.$kind"
        each "$kind"
    else
        echo "  (left out: $kind: mkfs.$kind is not installed)"
    fi
done
empty
mkswap "$disk" >/dev/null 2>&1 || fail "mkswap"
each swap

# put OFFSET HEX: at the offset, from the end if it is negative.
put() {
    python3 - "$disk" "$1" "$2" <<'PY'
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
at, data = int(sys.argv[2]), bytes.fromhex(sys.argv[3])
at = at if at >= 0 else os.lseek(fd, 0, os.SEEK_END) + at
os.pwrite(fd, data, at)
os.fsync(fd)
PY
}

# What no tool here makes: signatures behind the first eight KiB and at the end, where zeros were taken for nobody's.
empty
put 512 4c4142454c4f4e45            # LVM's label
each data
empty
put -512 4546492050415254           # GPT's backup
each data
empty
put -65536 fc4e2ba9                 # md's superblock 0.90
each linux_raid_member
empty
put $(( (256 + 128) * 1024 )) 0cb1ba0000000000   # ZFS's second label
each data

echo "· a disk that holds nothing is formatted, and asked for once"
empty
code=0; "$SWITCHYARD" serve --media "vssd:$disk" --nbd "127.0.0.1:$nbd_port" >"$work/out" 2>&1 || code=$?
(( code == 2 )) && grep -q format "$work/out" || { cat "$work/out" >&2; fail "a blank device was formatted unasked"; }
"$SWITCHYARD" store format "$disk" --json >"$work/out" || fail "store format"
"$SWITCHYARD" store verify "$disk" >"$work/out" || fail "the new area is not sound"
"$SWITCHYARD" store format "$disk" --erase area >"$work/out" || fail "an area was not erased by its name"
echo passed
