#!/bin/bash
# A few seeds of `make torture`: random programs of several processes with and without `switchyard run`, kills, power cuts, and cuts during
# recovery. SEEDS says which.
source "$(dirname "$0")/lib.sh"
need python3 cc mkfs.ext4
(( EUID == 0 )) || skip "loop devices and power cuts need root"
losetup -f >/dev/null 2>&1 || skip "no loop device"

# A tenth of a second each, where nobody else wants the processors.
"$root/tests/torture/run" --switchyard "$SWITCHYARD" --seeds "${SEEDS:-0..100}" --seconds 40 || fail "torture"
