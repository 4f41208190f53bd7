#!/usr/bin/env bash
# Plans that a checker which trusted them once accepted, each as a file: refused, with rank, task and region; as text and as JSON.
# usage: test_plan_refused.sh path/to/weft
. "$(dirname "$0")/../support/command.sh"
weft=$1
ring="--schedule ReduceScatter1D_TilingA_RotatingC --threads 1"

# NAME SED WORDS...: the plan in $scratch/right is right; what sed makes of it is refused with all the words in one line.
refused()
{
    local name=$1 change=$2 file
    shift 2
    sed -E "$change" "$scratch/right" >"$scratch/$name.plan"
    cmp -s "$scratch/right" "$scratch/$name.plan" && fail "$name: nothing was changed"
    "$weft" plan --from "$scratch/$name.plan" --json >"$scratch/$name.json" 2>/dev/null || fail "$name: it cannot be read"
    for file in "$scratch/$name.plan" "$scratch/$name.json"; do
        ends "$name" 1 "$weft" plan --from "$file" --check >"$scratch/found"
        grep -F -- "$1" "$scratch/found" >"$scratch/line" || fail "$name: no '$1' in: $(cat "$scratch/found")"
        for word in "$@"; do
            grep -qF -- "$word" "$scratch/line" || fail "$name: no '$word' in: $(cat "$scratch/line")"
        done
        # What is refused is not run either.
        ends "$name: run" 1 "$weft" bench --plan "$file" --iters 1 --peer none >"$scratch/out"
        [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$name: not one line: $(cat "$scratch/err")"
    done
}

# ARGUMENTS...: the right plan; without hashes, so that it may be changed.
right()
{
    "$weft" plan "$@" 2>/dev/null | sed 's/, hash .*//; s/ ReduceScatter1D_TilingA_RotatingC rank/ custom rank/; s/ one_shot rank/ custom rank/; s/ multimem rank/ custom rank/' >"$scratch/right"
    ends "$*" 0 "$weft" plan --from "$scratch/right" --check >/dev/null
}

right gemm_rs 4 4 6 -n 2 $ring
refused empty '/GEMM/d; s/task 3 EXIT/task 1 EXIT/; s/post 0@1/post 0@1 2@1/; s/post 1@0/post 1@0 3@0/; s/^signals.*/signals 4/; /^operand partial/d' \
    "nothing writes" "D of rank 0"
refused no_operands '/^operand/d; /GEMM/d; s/task 3 EXIT/task 1 EXIT/; s/post 0@1/post 0@1 2@1/; s/post 1@0/post 1@0 3@0/; s/^signals.*/signals 4/' \
    "of the problem is not" "A"
refused staging 's/operand D user float32 4 x 4 rows-parted output/operand D staging float32 4 x 4 rows-parted/' "D of the problem is not"
refused bytes 's/operand partial staging float32 2 x 4 handed-on/operand partial staging int8 2 x 4/' "a type does not fit" "GEMM task 1 of rank 0" partial
refused halves 's/r1 lane 0 task 2 GEMM.*/r1 lane 0 task 2 GEMM D[0:1, 0:4] = A[2:3, 0:3] * B[0:3, 0:4] + partial[0:1, 0:4] epilogue wait 4>=1\nr1 lane 0 task 3 GEMM D[1:2, 0:4] = A[3:4, 0:3] * B[0:3, 0:4] + partial[1:2, 0:4] epilogue/; s/r1 lane 0 task 3 EXIT/r1 lane 0 task 4 EXIT/' \
    "with other edges than those with which" "GEMM task 2 of rank 1" "partial of rank 1"
refused early 's/(task 1 GEMM partial@1.*) wait 1>=1 post 4@1 2@1/\1 post 4@1 2@1/' "before that rank's ENTER" "GEMM task 1 of rank 0" "partial of rank 1"

right all_reduce --bytes 24 -n 3 --schedule one_shot --threads 1
refused backwards 's/(r1 .*REDUCE .* = )(send@0\S+ \S+) \+ (send\[\S+ \S+) \+ (send@2\S+ \S+)/\1\4 + \3 + \2/' \
    "is added up in another order than on rank 0" "recv of rank 1"

right all_reduce --bytes 24 -n 2 --schedule multimem --threads 1
refused overlap 's/(r0 .*REDUCE recv\[0:1, 0:3\], )recv@1\[0:1, 0:3\]/\1recv[0:1, 0:3]/' "race: REDUCE task 1 of rank 0" "recv of rank 0"
refused post_first 's/^(r0 lane 0 task )0 ENTER post 0@1$/&\n\11 COPY nothing post 4@1/; s/^(r0 lane 0 task )2 EXIT/\13 EXIT/; s/^(r0 lane 0 task )1 REDUCE/\12 REDUCE/; s/^(r1 .*REDUCE.*) wait /\1 wait 4>=1 /' \
    "before that rank's ENTER" "COPY task 1 of rank 0"

# All plans of a group count on one table of signals: a post that its owner may have left behind would count in the next one's run.
refused late 's/^(r0 lane 0 task )2 EXIT/\12 COPY nothing post 4@1\n\13 EXIT/' "may post signal 4 of rank 1 after that rank's run has ended" "COPY task 2 of rank 0"

right gemm_rs 4 4 6 -n 2 $ring --pack run --BLOCK_SIZE_M 1 --beta 1
refused panel 's/(r1 lane 0 task 1 COPY packedB\[0:3, )0:4\] = B\[0:3, 0:4\]/\11:4] = B[0:3, 1:4]/' "cuts a panel of a packed operand: packedB" "COPY task 1 of rank 1"
refused used_c 's/(r0 lane 0 task 5 .*with C)\[1:2, 0:4\]/\1[0:1, 0:4]/' "which may be the memory of D" "GEMM task 5 of rank 0"

# Sums that are carried have one reader, which goes on where they were left.
cat >"$scratch/right" <<'P'
plan ag_gemm custom rank 0 of 1
problem m 3 n 2 k 4 b_form plain workers 1
operand A user float32 3 x 4 rows-parted
operand B user float32 4 x 2 cols-parted
operand D user float32 3 x 2 cols-parted output
operand sums private float32 4 x 2
operand more private float32 3 x 2
signals 2
lane 0 compute
r0 lane 0 task 0 ENTER
r0 lane 0 task 1 GEMM sums[0:3, 0:2] = A[0:3, 0:2] * B[0:2, 0:2] carry
r0 lane 0 task 2 GEMM D[0:3, 0:2] = A[0:3, 2:4] * B[2:4, 0:2] + sums[0:3, 0:2] epilogue
r0 lane 0 task 3 EXIT
P
ends "carried" 0 "$weft" plan --from "$scratch/right" --check >/dev/null
refused second_reader 's/(r0 lane 0 task )3 EXIT/\13 GEMM more[0:3, 0:2] = A[0:3, 2:4] * B[2:4, 0:2] + sums[0:3, 0:2]\n\14 EXIT/' \
    "reads sums that are carried on to another task: sums of rank 0" "GEMM task 3 of rank 0"
sed -i 's/ carry$//; s/^\(r0 lane 0 task \)2 GEMM.*/\12 GEMM sums[0:3, 0:2] = A[0:3, 2:4] * B[2:4, 0:2] + sums[0:3, 0:2]\n\13 REDUCE D[0:3, 0:2] = sums[0:3, 0:2] epilogue/; s/task 3 EXIT/task 4 EXIT/' "$scratch/right"
ends "in place" 0 "$weft" plan --from "$scratch/right" --check >/dev/null
refused shifted 's/(task 2 GEMM .* \+ sums)\[0:3, 0:2\]/\1[1:4, 0:2]/' "race: GEMM task 2 of rank 0" "sums of rank 0"

[ $failures = 0 ]
