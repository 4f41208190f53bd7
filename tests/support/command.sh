# For scripts that test the command, to be sourced: a folder for what it writes, and a count of failures, which is the
# script's last word: [ $failures = 0 ]
set -u
failures=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail()
{
    echo "${0##*/}: $1" >&2
    failures=$((failures + 1))
}

# ends NAME STATUS command…: errors in $scratch/err
ends()
{
    local name=$1 wanted=$2 got
    shift 2
    "$@" 2>"$scratch/err" </dev/null
    got=$?
    [ "$got" = "$wanted" ] || fail "$name: status $got, expected $wanted: $(cat "$scratch/err")"
}

# says FILE TEXT: the file of $scratch has the text
says()
{
    grep -qF -- "$2" "$scratch/$1" || fail "\"$2\" is missing in: $(cat "$scratch/$1")"
}
