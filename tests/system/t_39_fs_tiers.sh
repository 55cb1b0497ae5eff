#!/bin/bash
# Tiers of a mounted file system: new data on the fastest one, pins, moves while files are used, and what `fs status` tells of them.
source "$(dirname "$0")/lib.sh"
source "$here/mounted.sh"

devices=("nvm:$memory/nvm" "ssd:$work/ssd")

# await_status FILTER: until the status is so.
await_status() {
    local i
    for (( i = 0; i < 300; i++ )); do
        "$SWITCHYARD" fs status "$dir" --json >"$work/status.json"
        jq -e "$1" "$work/status.json" >/dev/null && return 0
        sleep 0.1
    done
    fail "the status never is $1: $(<"$work/status.json")"
}

"$SWITCHYARD" fs make "${devices[0]}:96MiB" "${devices[1]}:512MiB" >/dev/null
mount_fs "${devices[@]}"

echo "· new data are on the fastest tier as long as it has room"
python3 - "$dir" <<'PY'
import os, sys
for n in range(150):
    with open(f"{sys.argv[1]}/f{n}", "wb", buffering=0) as f:
        f.write(bytes([n % 251]) * (1 << 20))
        os.fsync(f.fileno())
PY
await_status '.migration.tiers | map(.tier) == ["nvm", "ssd"]'
await_status '.migration | .tiers[0].used_bytes < .tiers[0].bytes * 0.92 and .waiting_bytes == 0'
await_status '.devices[0].bytes - .devices[0].free_bytes > 50000000'

echo "· a file is pinned by an attribute"
python3 - "$dir" <<'PY'
import errno, os, sys
path, name = f"{sys.argv[1]}/f0", "user.switchyard.tier"
def refused(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, error
    else:
        raise AssertionError(f"{arguments} is not refused")
refused(errno.ENODATA, os.getxattr, path, name)
refused(errno.EINVAL, os.setxattr, path, name, b"tape")
refused(errno.EOPNOTSUPP, os.setxattr, path, name, b"hdd")
refused(errno.ENODATA, os.removexattr, path, name)
os.setxattr(path, name, b"nvm")
assert os.getxattr(path, name) == b"nvm"
refused(errno.EEXIST, os.setxattr, path, name, b"ssd", os.XATTR_CREATE)
os.setxattr(path, name, b"ssd")
os.setxattr(f"{sys.argv[1]}/f1", name, b"ssd")
os.removexattr(f"{sys.argv[1]}/f1", name)
PY
await_status '.migration.moved_down_bytes >= 1048576 and .migration.moves > 0'
"$SWITCHYARD" fs status "$dir" >"$work/text"
grep -q '^  tier nvm: ' "$work/text" && grep -q '^  moved: ' "$work/text" || fail "$(<"$work/text")"

echo "· all of it is there after a kill amid moves, and after the next mount"
kill_mount
mount_fs "${devices[@]}"
python3 - "$dir" <<'PY'
import os, sys
for n in range(150):
    assert open(f"{sys.argv[1]}/f{n}", "rb").read() == bytes([n % 251]) * (1 << 20), n
assert os.getxattr(f"{sys.argv[1]}/f0", "user.switchyard.tier") == b"ssd"
PY
end_mount
check_fs "${devices[@]}"
