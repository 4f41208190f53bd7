#!/usr/bin/env bash
# No two source files of the library need each other, directly or around corners: what they define and use,
# read from the objects of a build, has an order. tsort says so, or names the files of a circle.
# usage: scripts/check_circles.sh BUILD_DIR [NM]
set -euo pipefail
cd "$1/CMakeFiles/weft_objects.dir/src"
uses() { # "user definer", a line for each pair of files
    find . -name '*.c.o' -print0 | sort -z | xargs -0 "${1:-nm}" -A --no-sort | sed 's/^\.\///' | awk '
        { split($1, at, ":"); symbol = $NF; kind = $(NF - 1) }
        kind ~ /^[TDBRV]$/ { definer[symbol] = at[1] }
        kind == "U" { used[at[1] " " symbol] }
        END {
            for (one in used) {
                split(one, of, " ")
                if (of[2] in definer && definer[of[2]] != of[1])
                    print of[1], definer[of[2]]
            }
        }' | sort -u
}
if ! circle=$(uses "${2:-nm}" | tsort 2>&1 >/dev/null); then
    echo "check_circles: files that need each other:" >&2
    echo "$circle" >&2
    exit 1
fi
echo "check_circles: the files of the library stand in a line"
