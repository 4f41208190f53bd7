#!/usr/bin/env bash
# No two source files of the library need each other, directly or around corners: what they define and use has
# an order. It is read from the objects of a build, and from the text of all files (circles.py), since a build
# may be without the CUDA backend; and no two headers or kernels include each other. tsort says so, or names the
# files of a circle.
# usage: scripts/check_circles.sh BUILD_DIR [NM]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$1/CMakeFiles/weft_objects.dir/src"
built() { # "user definer", a line for each pair of files
    find . -name '*.c.o' -print0 | sort -z | xargs -0 "${1:-nm}" -A --no-sort | sed 's/^\.\///' | awk '
        { split($1, at, ":"); sub(/\.o$/, "", at[1]); symbol = $NF; kind = $(NF - 1) }
        kind ~ /^[TDBRV]$/ { definer[symbol] = at[1] }
        kind == "U" { used[at[1] " " symbol] }
        END {
            for (one in used) {
                split(one, of, " ")
                if (of[2] in definer && definer[of[2]] != of[1])
                    print of[1], definer[of[2]]
            }
        }'
}
in_line() { # standard input: pairs of files that need each other $1
    local circle
    if ! circle=$(sort -u | tsort 2>&1 >/dev/null); then
        echo "check_circles: files that $1 each other:" >&2
        echo "$circle" >&2
        exit 1
    fi
}
pairs=$(built "${2:-nm}")
written=$(python3 "$here/circles.py" uses)
grep -q '^run/cuda/' <<<"$written" || { echo "check_circles: the files of the CUDA backend were not found" >&2; exit 1; }
in_line need <<<"$pairs"$'\n'"$written"
python3 "$here/circles.py" includes | in_line include
echo "check_circles: the files of the library stand in a line"
