#!/usr/bin/env bash
# Runs every program of $NAMES (of folders: all in them) with --version: twice without a library and once under
# LD_PRELOAD. For tests/bare/gates.py, in namespaces of its own.
#
#   NAMES=… each.sh LIBRARY FOLDER      writes FOLDER/found.txt
set -u
library=$1 folder=$2
cd "$folder" || exit 1

seen() { # SECONDS COMMAND…: print status and output
    local output seconds=$1
    shift
    output=$(timeout -k 0.2 "$seconds" "$@" 2>&1 </dev/null | head -c 20000 | tr -d '\0'; exit "${PIPESTATUS[0]}")
    printf '%s\n%s' "$?" "$output"
}

list() {
    local name
    for name in $(eval "echo $NAMES"); do
        if [[ -d $name ]]; then
            [[ -L $name ]] || find "$name" -maxdepth 1 -type f -perm /111
        else
            type -P "$name"
        fi
    done
}

list | sort -u | while read -r program; do
    first=$(seen 5 env TASKD_PROCESS_ENABLE=on "$program" --version)
    second=$first limit_s=1 # for one that waits for ever
    if [[ $first != 124* && $first != 137* ]]; then
        second=$(seen 5 env TASKD_PROCESS_ENABLE=on "$program" --version)
        limit_s=5
    fi
    third=$(seen "$limit_s" env TASKD_PROCESS_ENABLE=on LD_PRELOAD="$library" "$program" --version)
    printf '%s\0' "$program" "$first" "$second" "$third"
done >found.txt
