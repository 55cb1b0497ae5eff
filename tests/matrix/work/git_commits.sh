#!/bin/sh
# git_commits.sh REPO NOTE FIRST [PREFIX…]: commits for ever; notes number and name when git has said that the commit is there.
cd "$1" || exit 1
note=$2 number=$3
shift 3
while :; do
    { echo "$number"; seq 1 $((number * 7 % 300)); } >"f$((number % 7))"
    "$@" git add -A || exit 1
    "$@" git commit -q --allow-empty -m "number $number" || exit 1
    echo "$number $(git rev-parse HEAD)" >>"$note"
    number=$((number + 1))
done
