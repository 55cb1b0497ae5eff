#!/bin/bash
# `switchyard bench fs`: every task has a row for every side, each has done something, and nothing is left behind. No time is looked at.
source "$(dirname "$0")/lib.sh"
need jq tar
[[ -c /dev/fuse ]] || skip "there is no /dev/fuse"
(( EUID == 0 )) || skip "it takes root"

echo "· all tasks, in memory, beside ext4"
"$SWITCHYARD" bench fs --dir "$work" --media mem --peers ext4 --rounds 1 --seconds 0.05 --count 20 --size 512MiB --json \
    --report "$work/page.html" >"$work/all.json"
sides=$(jq '.media[0].sides | length' "$work/all.json")
if (( sides < 3 )); then
    jq -e '.left_out | map(select(startswith("on mem: ext4"))) | length == 1' "$work/all.json" >/dev/null ||
        fail "ext4 is neither there nor left out by name: $(<"$work/all.json")"
fi
tasks="create append overwrite replace mkdir unlink stat open read-4k read-1m write-1m varmail varmail-16 fileserver webserver untar"
for task in $tasks sqlite-wal sqlite-delete leveldb-fillsync rocksdb-fillsync rocksdb-overwrite rocksdb-readrandom; do
    rows=$(jq --arg task "$task" '[.media[0].rows[] | select(.task == $task and .count > 0 and .mean_us > 0)] | length' "$work/all.json")
    (( rows == sides )) && continue
    # A program that is not installed is left out by name.
    program=${task%%-*}
    [[ " $tasks " != *" $task "* ]] && (( rows == 0 )) &&
        jq -e --arg program "$program" '.left_out | map(ascii_downcase | select(startswith($program))) | length == 1' \
            "$work/all.json" >/dev/null || fail "$task has $rows rows of $sides: $(<"$work/all.json")"
done
jq -e '[.media[0].rows[] | .client_cpu_us, .rest_cpu_us] | all(. >= 0)' "$work/all.json" >/dev/null ||
    fail "processor time is missing: $(<"$work/all.json")"
[[ $(grep -o '<tr><td class=text>' "$work/page.html" | wc -l) == $(jq '.media[0].rows | length / '"$sides" "$work/all.json") ]] ||
    fail "the page has other rows"

echo "· a file on the disk and a mapped one, both modes, as text"
"$SWITCHYARD" bench fs --dir "$work" --media ssd,nvm --mode ordered --only create,replace --alone --rounds 1 --seconds 0.05 \
    --size 512MiB >"$work/text"
[[ $(grep -c 'mode ordered' "$work/text") == 2 && $(grep -c '^write, rename, two fsyncs' "$work/text") == 4 ]] ||
    fail "rows are missing: $(<"$work/text")"

echo "· what is no task and no size is refused"
expect_code 2 "$SWITCHYARD" bench fs --only create,tea
expect_text "varmail-16"
expect_code 2 "$SWITCHYARD" bench fs --size 1MiB
expect_text "512 MiB"

expect_code 2 "$SWITCHYARD" bench fs --peers ext5

left=$(find "$work" -maxdepth 1 -name "switchyard-bench-*")
[[ -z $left ]] || fail "files are left: $left"
