#!/bin/bash
# Power cuts and kills after which `run` must not trust what it sees: backups that are brought back, other mounts, other names.
source "$(dirname "$0")/lib.sh"
need python3 mkfs.ext4 unshare jq
need_disk
(( EUID == 0 )) || skip "loop devices need root"

files=$work/files image=$work/image area=$work/area
mkdir "$files"
# Other users reach the files.
chmod 711 "$work"
at_end "umount -l '$files/b' '$files' 2>/dev/null"
mount_files() { mount -o loop "$image" "$files" || skip "no loop device"; }
# A program that was killed may still be ending.
unmount_files() {
    for _ in {1..100}; do
        ! mountpoint -q "$files/b" || umount "$files/b" 2>"$work/umount.err" || { sleep 0.1; continue; }
        umount "$files" 2>"$work/umount.err" && return
        sleep 0.1
    done
    fail "$(cat "$work/umount.err")"
}
# new_files [OPTION…]: an empty file system, and no area.
new_files() {
    ! mountpoint -q "$files" || unmount_files
    rm -f "$area" "$work/ready"
    truncate -s 0 "$image"
    truncate -s 128M "$image"
    mkfs.ext4 -q -F "$@" "$image"
    mount_files
}
run=("$SWITCHYARD" run --area "$area" --size 32MiB --match 'f*' --quiet)
records() { [[ ! -e $area ]] || "$SWITCHYARD" store dump "$area" 2>/dev/null || true; }
# is_settled RECORD: what programs have synced since is in their files, and the area has let go of it.
is_settled() {
    [[ $(records | jq -s --argjson since "$1" '([.[] | select(.kind == "put" and .record > $since) | .record] | min) as $put |
        $put != null and any(.[]; .kind == "trim" and .record > $put)') == true ]]
}
# begin NAME [COMMAND…]: the program of run_cuts.py under `run`, until it is ready.
begin() {
    local name=$1 since until=$(( SECONDS + 120 ))
    shift
    rm -f "$work/ready" "$work/ready.settled"
    since=$(records | jq -s 'map(.record) | max // 0')
    "$@" "${run[@]}" -- python3 "$here/run_cuts.py" "$name" "$files" "$work/ready" 2>>"$work/run.err" &
    program=$!
    until [[ -e $work/ready ]]; do
        kill -0 "$program" 2>/dev/null || { cat "$work/run.err" >&2; fail "$name ended"; }
        [[ $name != @(log|rename*|link*) ]] || ! is_settled "$since" || touch "$work/ready.settled"
        (( SECONDS < until )) || fail "$name is not ready"
        sleep 0.05
    done
}
# What `run` is the parent of, and what these are.
family() { local its; its=$(pgrep -P "$1") || true; for it in $its; do echo "$it"; family "$it"; done; }
end() { kill -9 $(family "$program") "$program" 2>/dev/null || true; wait "$program" 2>/dev/null || true; }
power_cut() {
    python3 "$here/power_cut.py" cut "$files" $(family "$program")
    end
    unmount_files
    mount_files
}
lines() { wc -l <"$1"; }

# bug: recovery made the newer changes to a file of a backup. cause: an older file was taken for one that the crash had set back. fix: the area
# has a date that the file system has had durably.
echo "· a backup that was brought back after a cut is refused"
new_files
begin older
end
"$SWITCHYARD" export "$area" >/dev/null
unmount_files
cp --sparse=always "$image" "$work/backup"
mount_files
begin log
power_cut
unmount_files
cp --sparse=always "$work/backup" "$image"
mount_files
code=0
"${run[@]}" -- true 2>"$work/err" || code=$?
(( code == 1 )) && grep -q "f.log is older than its program left it" "$work/err" || { cat "$work/err" >&2; fail "the backup was taken ($code)"; }
[[ $(cat "$files/f.log") == "of the backup" ]] || fail "the backup was changed"

# bug: what the program had not synced was cut off though nothing had crashed. cause: a mount of another namespace, or of later, was taken for
# a crash. fix: the file system has one number for all its mounts, and a file that has everything stays.
for namespace in "unshare -m" ""; do
    echo "· a kill of both, and ${namespace:-a new mount}: what was not synced stays"
    new_files
    begin log $namespace
    end
    [[ -n $namespace ]] || { unmount_files; mount_files; }
    $namespace "${run[@]}" -- true 2>"$work/err" || { cat "$work/err" >&2; fail "run does not start"; }
    (( $(lines "$files/f.log") == 61 )) || fail "$(lines "$files/f.log") of 61 lines are left"
done

# bug: a log that was moved lost what it had synced since, unless recovery might open files by handles. fix: it looks at all names.
echo "· a log that was moved to another directory is found by its user"
new_files
install -d -o nobody "$files/d" "$files/archive"
install -d -o nobody "$work/nobody"
area=$work/nobody/area
run[3]=$area
as_nobody=(setpriv --reuid nobody --regid nogroup --clear-groups)
touch "$work/run.err"
chown nobody "$work/nobody" "$files"
ready=$work/nobody/ready
"${as_nobody[@]}" "${run[@]}" -- python3 "$here/run_cuts.py" moved "$files" "$ready" &
program=$!
until [[ -e $files/grows ]]; do kill -0 "$program" 2>/dev/null || fail "moved ended"; sleep 0.05; done
mv "$files/d/f.log" "$files/archive/old.log"
sync "$files"
touch "$files/moved"
until [[ -e $ready ]]; do kill -0 "$program" 2>/dev/null || fail "moved ended"; sleep 0.05; done
power_cut
"${as_nobody[@]}" "$SWITCHYARD" export "$area" || fail "no recovery"
(( $(lines "$files/archive/old.log") == 40 )) || fail "$(lines "$files/archive/old.log") of 40 records are left"
[[ ! -e $files/d/f.log ]] || fail "a new file is at the old path"
area=$work/area
run[3]=$area

# bug: a log that the area had let go of was lost with its new name: the cut took the name back, and recovery took the file for an older state
# of the one that came after it. fix: names of files that may be followed are durable before another file has them.
for how in rename rename_by_a_child rename_of_the_directory link_and_unlink; do
    echo "· ${how//_/ }: the older file is still there after a cut"
    new_files
    begin "$how"
    power_cut
    "$SWITCHYARD" export "$area" >/dev/null || fail "no recovery"
    [[ $(cat "$files/d/f.log") == new ]] || fail "the new file is lost"
    old=$(find "$files" -name old.log -o -path "$files/old/f.log")
    [[ -n $old ]] && (( $(lines "$old") == 40 )) || fail "the older file is lost"
done

# bug: synced bytes were taken away. cause: the owner of the area did not know who else wrote the file. fix: processes of a run say that they
# write, and the owner looks at their descriptors; mounts of one file system are one.
echo "· a worker has the file by another name"
new_files
ln -s f.log "$files/current"
begin other_name
power_cut
"$SWITCHYARD" export "$area" >/dev/null || fail "no recovery"
[[ $(cat "$files/f.log") == parent$'\n'child ]] || { cat "$files/f.log" >&2; fail "what was synced is lost"; }

echo "· a file by the paths of two mounts"
new_files
mkdir "$files/a" "$files/b"
mount --bind "$files/a" "$files/b"
begin two_mounts
power_cut
"$SWITCHYARD" export "$area" >/dev/null || fail "no recovery"
[[ $(cat "$files/a/f.log") == BBBB ]] || { cat "$files/a/f.log" >&2; fail "an older state came back"; }

# bug: records were overwritten by others. cause: a write of a file that had been given up moved the cursor by itself, which others move, too.
# fix: then the program's own descriptor writes.
echo "· a cursor that several processes have"
new_files
timeout 60 "${run[@]}" -- python3 "$here/run_cuts.py" shared_cursor "$files" "" || fail "records are lost"

# bug: every further file of others failed with EIO. fix: a full table is no failure, and places of what nobody writes are used again.
echo "· more files of others than the table has places"
new_files
timeout 120 "${run[@]}" -- python3 "$here/run_cuts.py" many_files "$files" "" || fail "a file could not be written"

# bug: what a program had synced was undone. cause: its `run` had ended, or it had a network of its own, so it found nobody to ask who follows
# the file. fix: `run` leaves a keeper behind, and has a socket with a file.
# bug: the same if the helper did not see the run's process, or had closed the library's descriptors of /proc. fix: a process without
# a number is one, too, and those descriptors stay.
keepers() { pgrep -f "^switchyard run-keeper --area $area\$" || true; }
background() { [[ -s $work/ready.pid ]] && cat "$work/ready.pid" && family "$(cat "$work/ready.pid")"; keepers; }
at_end 'kill -9 $(background) 2>/dev/null'
# until_there FILE
until_there() {
    local i
    for (( i = 0; i < 600; i++ )); do
        [[ ! -s $1 ]] || return 0
        sleep 0.05
    done
    fail "no ${1##*/}"
}
nobody="setpriv --reuid nobody --regid nogroup --clear-groups"
for left in yes ""; do
    for helper in "" "unshare -n" "unshare -n $nobody" "unshare -p -f" "env CLOSES=yes"; do
        [[ -n $left$helper ]] || continue
        [[ -n $left ]] && what="a daemon that run has left behind" || what="a program"
        echo "· a helper of $what${helper:+, by $helper}"
        new_files
        rm -f "$work"/ready*
        chmod 777 "$files"
        # Of the helper's user.
        : >"$work/ready"
        chmod 666 "$work/ready"
        (umask 0; LEFT=$left HELPER=$helper exec "${run[@]}" -- python3 "$here/run_cuts.py" background "$files" "$work/ready") 2>>"$work/run.err" &
        program=$!
        until_there "$work/ready.pid"
        [[ -z $left ]] || wait "$program" || fail "run ended with $?"
        touch "$work/ready.go"
        until_there "$work/ready"
        its=$(background)
        [[ -n $left ]] || its+=" $program $(family "$program")"
        # The daemon has written since.
        sleep 0.3
        python3 "$here/power_cut.py" cut "$files" $its
        kill -9 $its 2>/dev/null || true
        wait "$program" 2>/dev/null || true
        unmount_files
        mount_files
        "$SWITCHYARD" export "$area" >/dev/null || fail "no recovery"
        [[ $(head -1 "$files/f.log") == helper ]] || { head -2 "$files/f.log" >&2; fail "what the helper has synced is lost"; }
    done
done
