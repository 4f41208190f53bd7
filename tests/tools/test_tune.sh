#!/usr/bin/env bash
# `weft tune` keeps what won in a file, a line for a machine, a version and a problem; `auto` goes by it, and by nothing else in it.
# usage: test_tune.sh path/to/weft
. "$(dirname "$0")/../support/command.sh"
weft=$1
export XDG_CACHE_HOME="$scratch/cache"
unset WEFT_TUNE
file="$scratch/cache/weft/tuned"

ends "measured" 0 "$weft" tune gemm_rs 24 40 56 -n 2 --seconds 0.01 --json >"$scratch/tries"
[ "$(grep -c '"won": true' "$scratch/tries")" = 1 ] || fail "not one try won"
[ "$(grep -vc '^#' "$file")" = 1 ] || fail "not one line was kept: $(cat "$file")"
ends "again" 0 "$weft" tune gemm_rs 24 40 56 -n 2 --seconds 0.01 >"$scratch/table"
[ "$(grep -vc '^#' "$file")" = 1 ] || fail "the line was not replaced: $(cat "$file")"
says table "kept in $file for auto"
ends "another" 0 "$weft" tune all_reduce --bytes 256K -n 2 --seconds 0.01 >/dev/null
[ "$(grep -vc '^#' "$file")" = 2 ] || fail "the second problem is not beside the first"

# What the file says is what auto takes: here, something that was never the fastest.
takes()
{
    ends "$1" 0 "$weft" bench $1 -n 2 --iters 2 --peer none --json >"$scratch/row"
    grep -q "\"$2\": \"$3\"" "$scratch/row" || fail "$1 did not take $3: $(cat "$scratch/row")"
}
sed -i -E '/ all_reduce /s/^([0-9a-f]+ [^ ]+ [0-9a-f]+) [^ ]+ 0 [0-9]+/\1 two_shot 0 1024/; / gemm_rs /s/^([0-9a-f]+ [^ ]+ [0-9a-f]+) [^ ]+/\1 direct/' "$file"
takes "all_reduce --bytes 256K" chosen two_shot
takes "gemm_rs 24 40 56" chosen direct
takes "all_reduce --bytes 512K" chosen multimem # a problem that nobody tuned
WEFT_TUNE=off takes "all_reduce --bytes 256K" chosen multimem
sed 's/^[0-9a-f]* /0000000000000001 /' "$file" >"$scratch/other"
WEFT_TUNE=$scratch/other takes "all_reduce --bytes 256K" chosen multimem # another CPU
sed 's/^\([0-9a-f]* \)[^ ]* /\10.0.1 /' "$file" >"$scratch/older"
WEFT_TUNE=$scratch/older takes "all_reduce --bytes 256K" chosen multimem # another version
"$weft" info | grep -qF "$file: 2 of 2 lines for ranks on this CPU" || fail "weft info: $("$weft" info | grep tuned)"

# `weft plan` shows what auto would run, and where that comes from; lines that do not count are told, not passed over in silence.
plans()
{
    ends "$1" 0 "$weft" plan $1 -n 2 >"$scratch/plan"
    says plan "$2"
    says err "$3"
}
elsewhere="what weft tune kept for this problem is for another machine"
plans "gemm_rs 24 40 56" "plan gemm_rs direct rank 1 of 2" "auto is direct here, kept by weft tune in $file"
plans "all_reduce --bytes 256K" "plan all_reduce two_shot" "kept by weft tune in $file"
plans "all_reduce --bytes 512K" "plan all_reduce multimem" "by a fixed rule"
ends "a schedule that was asked for" 0 "$weft" plan gemm_rs 24 40 56 -n 2 --schedule unfused >/dev/null
[ ! -s "$scratch/err" ] || fail "weft plan says what nobody asked: $(cat "$scratch/err")"
for kept in other older; do
    export WEFT_TUNE=$scratch/$kept
    plans "gemm_rs 24 40 56" "plan gemm_rs unfused" "$elsewhere"
    ends "bench, $kept" 0 "$weft" bench gemm_rs 24 40 56 -n 2 --iters 2 --peer none >"$scratch/out"
    says out "$elsewhere"
    ends "bench, $kept" 0 "$weft" bench all_reduce --bytes 256K -n 2 --iters 2 --peer none >"$scratch/out"
    says out "$elsewhere"
    "$weft" info | grep -qF ": 0 of 2 lines for ranks on this CPU" || fail "weft info: $("$weft" info | grep tuned)"
    unset WEFT_TUNE
done
ends "bench, none elsewhere" 0 "$weft" bench all_reduce --bytes 256K -n 2 --iters 2 --peer none >"$scratch/out"
grep -qF "$elsewhere" "$scratch/out" && fail "a line that counts was called one that does not"

# A file that weft tune did not write is refused, not ignored.
echo "nonsense" >"$scratch/bad"
ends "a bad file" 2 env WEFT_TUNE="$scratch/bad" "$weft" bench all_reduce --bytes 256K -n 2 --iters 2 --peer none >/dev/null
says err "$scratch/bad:1: not a line that weft tune wrote"

# So is one that was cut, wherever that was; behind all its fields nothing is lost.
line=$(grep ' gemm_rs ' "$file")
fields=${line%%#*}
for ((bytes = 1; bytes < ${#fields}; bytes += bytes < 40 ? 13 : 1)); do
    printf '%s' "${line:0:bytes}" >"$scratch/cut"
    WEFT_TUNE=$scratch/cut "$weft" plan gemm_rs 24 40 56 -n 2 >/dev/null 2>"$scratch/err" && fail "taken: ${line:0:bytes}"
    says err "$scratch/cut:1: not a line that weft tune wrote, or not all of it"
done
printf '%s' "$fields#" >"$scratch/cut"
WEFT_TUNE=$scratch/cut plans "gemm_rs 24 40 56" "plan gemm_rs direct" "kept by weft tune in $scratch/cut"

# Over nodes, by ranks that are processes: lines of their own, which auto goes by there alone.
ends "over nodes" 0 "$weft" tune all_reduce --bytes 256K -n 2 --nodes 2 --seconds 0.01 --json >"$scratch/tries"
[ "$(grep -c '"won": true' "$scratch/tries")" = 1 ] || fail "not one try over nodes won: $(cat "$scratch/tries")"
grep -q '"schedule": "two_level"' "$scratch/tries" || fail "two_level was not tried over nodes"
[ "$(grep -c 'measured over nodes$' "$file")" = 1 ] || fail "no line for two nodes: $(cat "$file")"
sed -i -E '/over nodes$/s/^([0-9a-f]+ [^ ]+ [0-9a-f]+) [^ ]+/\1 one_shot/' "$file"
takes "all_reduce --bytes 256K --nodes 2" chosen one_shot
takes "all_reduce --bytes 256K" chosen two_shot
ends "no such nodes" 2 "$weft" tune all_reduce --bytes 4K -n 2 --nodes 3
[ "$(wc -l <"$scratch/err")" = 1 ] || fail "nodes: not one line: $(cat "$scratch/err")"

# Another machine, by simulation; weft sim goes by it, on that machine alone.
ends "simulated" 0 "$weft" tune ag_gemm 2048 4096 2048 --dtype bf16 -n 8 --machine h100x8 >/dev/null
sed -i -E '/ h100x8$/s/^([0-9a-f]+ [^ ]+ [0-9a-f]+) [^ ]+ [0-9]+ [0-9]+/\1 direct 256 64/' "$file"
ends "tuned" 0 "$weft" sim ag_gemm 2048 4096 2048 --dtype bf16 -n 8 --machine h100x8 >"$scratch/out"
says out "tuned direct, tiles 256 x 64"
ends "its plan" 0 "$weft" plan ag_gemm 2048 4096 2048 --dtype bf16 -n 8 --machine h100x8 --rank 0 >"$scratch/plan"
says plan "plan ag_gemm direct rank 0 of 8"
says err "kept by weft tune in $file"
ends "simulated nodes" 0 "$weft" tune all_reduce --bytes 1M --dtype bf16 -n 16 --machine h100x16 --json >"$scratch/tries"
grep '"won": true' "$scratch/tries" | grep -qE '"schedule": "(two_level|multimem)"' || fail "no schedule that knows nodes won on two"
ends "not tuned" 0 "$weft" sim ag_gemm 2048 4096 2048 --dtype bf16 -n 8 --machine h200x8 >"$scratch/out"
says out "auto "

# A file that cannot be read to its end is neither passed over nor added to, and whoever says so is weft tune.
tune="tune gemm_ar 64 64 64 --dtype bf16 -n 2 --machine h100x8"
refuses()
{
    cp "$2" "$scratch/before" 2>/dev/null
    for asked in "$tune" "sim ${tune#tune }"; do
        WEFT_TUNE=$2 ends "$1, ${asked%% *}" 2 "$weft" $asked >/dev/null
        [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$1: not one line: $(cat "$scratch/err")"
        says err "weft ${asked%% *}: $3"
    done
    [ -d "$2" ] || cmp -s "$2" "$scratch/before" || fail "$1: the file was changed"
}
WEFT_TUNE=$scratch/kept ends "kept" 0 "$weft" $tune >/dev/null
sed -E '2s/^(([^ ]+ ){5}).*/\1/' "$scratch/kept" >"$scratch/cut"
refuses "a line that was cut off" "$scratch/cut" "$scratch/cut:2: not a line that weft tune wrote"
sed -E '2s/^(([^ ]+ ){8})[^ ]+/\1nan/' "$scratch/kept" >"$scratch/nan"
refuses "a time that is none" "$scratch/nan" "$scratch/nan:2: not a line"
refuses "a directory" "$scratch" "cannot read $scratch, the file of \`weft tune\`: Is a directory"
printf '%s' "$(cat "$scratch/kept")" >"$scratch/bare" # as an editor may leave it
WEFT_TUNE=$scratch/bare ends "no newline" 0 "$weft" tune gemm_ar 64 64 128 --dtype bf16 -n 2 --machine h100x8 >/dev/null
[ "$(grep -vc '^#' "$scratch/bare")" = 2 ] || fail "two lines became one: $(cat "$scratch/bare")"
# Where nothing can be written, that is said before anything is measured, with the reason of the folder that cannot be made.
for asked in "$tune" "$tune --json" "tune all_reduce --bytes 64 -n 2 --nodes 2"; do
    WEFT_TUNE=/proc/weft/tuned ends "nowhere to write" 1 "$weft" $asked >"$scratch/out"
    says err "weft tune: cannot write /proc/weft/tuned"
    [ ! -s "$scratch/out" ] || fail "$asked: it tried schedules first: $(cat "$scratch/out")"
done
WEFT_TUNE=/proc/weft/tuned ends "nowhere to write, ranks" 1 "$weft" run -n 2 -- "$weft" tune all_reduce --bytes 64 >"$scratch/out"
says err "cannot write /proc/weft/tuned"
if unshare -rm true 2>/dev/null; then
    mkdir "$scratch/home"
    for asked in "tune all_reduce --bytes 64 --seconds 0.01" calibrate; do
        ends "a home that is read-only, $asked" 1 unshare -rm bash -c "
            mount -t tmpfs -o ro none '$scratch/home'
            env -u WEFT_TUNE -u XDG_CACHE_HOME -u XDG_CONFIG_HOME HOME='$scratch/home' '$weft' $asked" >"$scratch/out"
        says err "weft ${asked%% *}: cannot write $scratch/home/.c"
        says err ": Read-only file system"
        [ ! -s "$scratch/out" ] || fail "$asked: it measured first: $(cat "$scratch/out")"
    done
fi

for bad in "gemm_rs 24 40 56 --schedule direct" "all_reduce" "ag_gemm" "moe" "gemm_rs 8 8 8 --machine nowhere"; do
    ends "$bad" 2 "$weft" tune $bad
    [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$bad: not one line: $(cat "$scratch/err")"
done
# It lists no flag for what it finds, or for pictures, and takes none.
"$weft" tune --help >"$scratch/help"
for flag in --schedule --BLOCK_SIZE_M --threads --svg --trace; do
    ! grep -q -e "^ .*$flag" "$scratch/help" || fail "weft tune --help lists $flag"
    ends "$flag" 2 "$weft" tune gemm_rs 24 40 56 $flag 1 >/dev/null
    says err "unknown flag $flag"
done

[ $failures = 0 ]
