#!/bin/sh
# A history with branches, merges, conflicts' absence, tags, stashes, gc and repack; dates are fixed, so all names of objects are.
set -e
git init -q -b main "$1"
cd "$1"
git config core.fsync all
git config core.fsyncMethod "$2"
git config gc.autoDetach false
number=0
commit() {
    number=$((number + 1))
    mkdir -p "d$((number % 5))"
    seq 1 $((number * 13 % 400)) >"d$((number % 5))/file$number"
    echo "$number" >>log
    git add -A
    git commit -q -m "commit $number"
}
for it in 1 2 3 4 5 6 7 8; do commit; done
git checkout -q -b topic HEAD~3
seq 1 50 >topic
git add topic
git commit -q -m topic
git checkout -q main
git merge -q --no-edit topic
git tag -a -m tagged v1
head -c 400000 /dev/zero | tr '\0' 'x' >big
git add big
git commit -q -m big
echo changed >>log
git stash -q
git stash pop -q
git commit -q -a -m changed
git mv d1 moved
git commit -q -m moved
git gc -q --prune=now
for it in 1 2 3; do commit; done
git repack -q -a -d
git pack-refs --all
git branch -q -D topic
git reflog expire --expire=now --all
git gc -q --prune=now --aggressive
git rebase -q --force-rebase HEAD~2
git fsck --full --strict
