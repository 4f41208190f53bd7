#!/usr/bin/env bash
# What goes wrong outside weft, as a user sees it: one line that says so, the right status, nothing left behind.
# usage: test_mishaps.sh path/to/weft
. "$(dirname "$0")/../support/command.sh"
weft=$1

# one_line STATUS TEXT command…: ends with the status after one line on standard error that has the text
one_line()
{
    local wanted=$1 text=$2
    shift 2
    ends "$*" "$wanted" "$@"
    [ "$(wc -l <"$scratch/err")" = 1 ] || fail "$*: not one line: $(cat "$scratch/err")"
    says err "$text"
}

nowhere()
{
    "$@" >/dev/full
}

closed()
{
    "$@" >&-
}

quietly()
{
    "$@" >/dev/null
}

# Output that cannot be written is an error, also of a command whose work went well.
if [ -c /dev/full ]; then
    one_line 1 "cannot write to standard output" nowhere "$weft" info
    one_line 1 "cannot write to standard output" nowhere "$weft" plan ag_gemm 64 64 64 --schedule direct
    one_line 1 "cannot write to standard output: No space left" nowhere "$weft" bench barrier --iters 5 --json
fi
one_line 1 "cannot write to standard output" closed "$weft" info
one_line 1 "cannot write to standard output" closed "$weft" bench barrier --iters 5 --json

# Who reads no further than it wants to is no error to speak of, also where the signal that says so is ignored.
for asked in "--help" "bench --help" "info" "plan ag_gemm 64 64 64 --schedule direct"; do
    (trap '' PIPE && { sleep 0.2 && "$weft" $asked 2>"$scratch/err"; } | true)
    [ ! -s "$scratch/err" ] || fail "$asked into a pipe that nobody reads: $(cat "$scratch/err")"
done

# Settings that make no sense are said before there are ranks, once; also where ranks find them.
one_line 2 "WEFT_HEAP is \"much\"" env WEFT_HEAP=much "$weft" bench all_reduce --bytes 64
one_line 2 "WEFT_ENTER_TIMEOUT is" env WEFT_ENTER_TIMEOUT=1e300 "$weft" bench all_reduce --bytes 64 --peer none
one_line 2 "WEFT_NET is" env WEFT_NET=pigeon "$weft" bench all_reduce --bytes 64
one_line 2 "WEFT_NET is" env WEFT_NET=pigeon "$weft" run -n 2 --nodes 2 -- true
one_line 2 "WEFT_HUGE is" env WEFT_HUGE=big "$weft" bench all_reduce --bytes 64
one_line 2 "WEFT_ISA" env WEFT_ISA=6502 "$weft" bench gemm_rs 64 64 64
one_line 2 "WEFT_ISA" env WEFT_ISA=6502 "$weft" run -n 2 -- true
one_line 2 "machine description /none/x" env WEFT_MACHINE=/none/x "$weft" run -n 2 -- true
one_line 2 "cannot read /tmp, the file of" env WEFT_TUNE=/tmp "$weft" run -n 2 -- true
one_line 2 "machine description /none/x" env WEFT_MACHINE=/none/x "$weft" bench gemm_rs 64 64 64 --peer none
one_line 2 "cannot read the machine description /tmp" "$weft" sim ag_gemm 64 64 64 --machine /tmp/
one_line 1 "WEFT_HEAP sets how much" env WEFT_HEAP=32M "$weft" bench all_reduce --bytes 1G --json
one_line 1 "WEFT_HEAP sets how much" quietly env WEFT_HEAP=32M "$weft" bench ag_gemm 100000 100000 64

# Limits on the stack, and on files, which memory is one of: said by the command that was called.
stacked()
{
    (ulimit -s $1 && shift && exec "$@")
}
unfiled()
{
    (ulimit -f 0 && exec "$@") 2>&1 | cat >&2
    return "${PIPESTATUS[0]}"
}
one_line 2 "the stack may have 64 KiB" stacked 64 "$weft" bench barrier -n 2 --peer none --iters 5
one_line 2 "weft bench: symmetric memory takes" unfiled "$weft" bench barrier -n 2 --peer none --iters 5
one_line 2 "weft run: symmetric memory takes" unfiled "$weft" run -n 2 -- true

# A limit on address space is kept to (sanitizers cannot), and one that leaves no room is said.
limited()
{
    (ulimit -v $1 && shift && exec "$@")
}
if limited 8000000 "$weft" info >/dev/null 2>&1; then
    limited 8000000 "$weft" bench barrier -n 4 --peer none --iters 5 >/dev/null || fail "no world within 8 GB of address space"
    one_line 2 "/dev/zero is no text" limited 8000000 "$weft" plan --from /dev/zero
    one_line 2 "/dev/zero is not a page that --html wrote" limited 8000000 "$weft" report --output "$scratch/page" /dev/zero
    one_line 2 "is not a page that --html wrote" limited 8000000 "$weft" report --output "$scratch/page" /dev/fd/3 3< <(yes)
    stacked 256 "$weft" bench all_reduce -n 2 --bytes 64 --peer none --iters 5 >/dev/null || fail "256 KiB of stack do not do"
    for machine in this h100x16; do # of which one is like another
        stacked 256 "$weft" sim all_reduce -n 2 --bytes 64 --machine $machine >/dev/null ||
            fail "256 KiB of stack do not do for a simulation of $machine"
    done
    one_line 1 "address space" quietly limited 130000 "$weft" bench barrier -n 4 --peer none --iters 5
fi

# What no machine holds.
one_line 2 "at most 1024 ranks" "$weft" bench ag_gemm 64 64 64 -n 2000
one_line 2 "at most 1024 ranks" "$weft" plan ag_gemm 64 64 64 -n 1025
one_line 2 "choose larger ones" "$weft" plan ag_gemm 2147483648 16 16 -n 2 --schedule direct --BLOCK_SIZE_M 64
one_line 2 "choose larger ones" "$weft" plan gemm_rs 2147483648 1024 16 -n 2 --schedule direct --check
one_line 2 "choose larger ones" "$weft" plan ag_gemm 2147483648 16 16 -n 2
one_line 2 "at most 2^46 elements" "$weft" bench gemm 1099511627776 1099511627776 1099511627776
one_line 2 "at most 2^46 elements" "$weft" plan ag_gemm 1099511627776 1099511627776 1099511627776
one_line 2 "choose larger ones" "$weft" plan ag_gemm 1000000 1000000 64 --BLOCK_SIZE_M 1 --BLOCK_SIZE_N 1
one_line 1 "no memory for a product" "$weft" bench gemm 8000000 8000000 1000
one_line 1 "no memory for experts of" "$weft" bench moe --inter 16777216 --hidden 16777216
one_line 1 "WEFT_HEAP sets how much" env WEFT_HEAP=64K "$weft" calibrate --output -

# Refused before anything is filled: no operand of these is ever written.
one_line 1 "of symmetric memory on each and has" quietly "$weft" bench gemm_rs 60000 60000 60000 --peer none
one_line 1 "of symmetric memory on each and has" quietly "$weft" bench gemm_ar 100000 100000 64 --peer none
one_line 1 "of symmetric memory on each and has" quietly env WEFT_HEAP=1G "$weft" bench all_gather --bytes 1G --peer none

# What was asked for is not left out without a word.
one_line 2 "--torch /no/such/python: it cannot be started" "$weft" bench ag_gemm 64 64 64 --torch /no/such/python
one_line 2 "--torch false: it cannot be started" "$weft" bench gemm 64 64 64 --torch false
ends "-n under a launcher" 2 "$weft" run -n 2 -- "$weft" bench barrier -n 3 --iters 2
says err "weft bench: -n 3: this bench runs on the 2 ranks it was started with"
ends "-n that agrees" 0 quietly "$weft" run -n 2 -- "$weft" bench barrier -n 2 --iters 2
one_line 2 "--svg belongs to products, collectives, not to moe" "$weft" bench moe --svg "$scratch/moe.svg"
one_line 2 "--seed belongs to products, gemm, collectives, moe, not to barrier" "$weft" bench barrier --seed 3
one_line 2 "--scale divides the shapes of a set: --set is missing" "$weft" bench moe --scale 4
one_line 2 "--seconds 0: must be a number from 1 to 3600" "$weft" calibrate --seconds 0
one_line 2 "--iterations x: must be a whole number" "$weft" report --iterations x

# --threads counts for the library's own call too: a lane for each.
"$weft" bench all_reduce --bytes 1M --threads 2 --iters 1 --warmup 0 --trace "$scratch/two.json" >/dev/null 2>&1
grep -q '"tid":1' "$scratch/two.json" || fail "bench all_reduce --threads 2 runs one lane"

# Who gave the ranks of each node is not told to: they are too few, or too many.
for command in "plan ag_gemm 64 64 64" "bench barrier" "tune all_reduce --bytes 64" "run"; do
    one_line 2 "together as many as --ranks says" "$weft" $command -n 2 --nodes 3+5
    one_line 2 "together as many as --ranks says" "$weft" $command -n 9 --nodes 3+5
    one_line 2 "a number of nodes from 1 to that of ranks" "$weft" $command -n 8 --nodes 3+x
done

# Ranks of several nodes are not drawn: said beforehand, and a page does without.
one_line 2 "draw the ranks of one node" "$weft" bench ag_gemm 64 64 64 --nodes 2 --svg "$scratch/nodes.svg"
ends "pictures of nodes" 1 quietly "$weft" run -n 2 --nodes 2 -- "$weft" bench ag_gemm 64 64 64 --iters 2 --peer none --svg "$scratch/nodes.svg"
says err "draw the ranks of one node"
ends "a page of nodes" 0 "$weft" bench ag_gemm 64 64 64 --nodes 2 --iters 2 --peer none --html "$scratch/nodes.html" >"$scratch/out"
says out "without timelines"

# Flags that would do nothing.
one_line 2 "--rows 5" "$weft" bench moe --rows 5
one_line 2 "--topk, --tokens" "$weft" bench moe --inter 64 --topk 2
one_line 2 "one schedule" "$weft" plan ag_gemm 64 64 64 --schedule all
one_line 2 "one size" "$weft" plan all_reduce --bytes 64:1M
one_line 2 "--rank is for printing" "$weft" plan ag_gemm 64 64 64 --check --rank 0
one_line 2 "--json is for a plan that is printed" "$weft" plan ag_gemm 64 64 64 --json --svg "$scratch/plan.svg"
one_line 2 "brings its own --experts" "$weft" bench moe --set contest --experts 8
one_line 2 "--dtype int32: gemm multiplies" "$weft" bench gemm --dtype int32
one_line 2 "--peer mpi stands beside" "$weft" bench gemm 64 64 64 --peer mpi
ends "MPI that cannot add" 1 quietly "$weft" run -n 2 -- "$weft" bench all_reduce --bytes 64 --dtype f16 --peer mpi
says err "--peer mpi: MPI is not in these ranks"
one_line 2 "--launch graph: cpu is a CPU" "$weft" sim ag_gemm 64 64 64 --machine cpu --launch graph
one_line 2 "--threads: the formulas of moe" "$weft" sim moe --threads 2
one_line 2 "--output needs a file" "$weft" calibrate --output ''

one_line 127 "cannot start /no/such/program" "$weft" run -n 2 -- /no/such/program
one_line 126 "cannot start $scratch/err" "$weft" run -n 2 -- "$scratch/err"

# A rank that is killed under a bench is one line, whoever notices it: the other ranks or what started them. (Small
# messages: Open MPI has a line of its own for a large one that it was just reading from the dead.)
descendants()
{
    local child
    for child in $(cat /proc/$1/task/$1/children 2>/dev/null); do
        echo $child
        descendants $child
    done
}
# The ranks among the processes of a bench.
ranks_of()
{
    local process
    for process in $(descendants $1); do
        tr '\0' '\n' </proc/$process/environ 2>/dev/null | grep -qE '^(WEFT|OMPI_COMM_WORLD)_RANK=' && echo $process
    done
}
for peer in none auto; do
    named=0
    for victim in 1 2; do
        timeout 60 "$weft" bench all_reduce --bytes 64 --iters 1000000 --peer $peer >/dev/null 2>"$scratch/err" &
        front=$!
        for try in $(seq 600); do
            ranks=$(ranks_of $front)
            [ "$(echo "$ranks" | wc -w)" = 2 ] && break
            sleep 0.05
        done
        sleep 0.5
        killed=$(echo "$ranks" | sed -n ${victim}p)
        kill -9 $killed
        wait $front 2>/dev/null && fail "a bench with a killed rank ended with status 0"
        [ "$(wc -l <"$scratch/err")" = 1 ] || fail "rank killed, --peer $peer: not one line: $(cat "$scratch/err")"
        grep -qE 'was ended by signal 9|died' "$scratch/err" || fail "rank killed: unclear: $(cat "$scratch/err")"
        ! grep -qE "rank [01] \(process $killed\) (was ended by signal 9|died)" "$scratch/err" || named=$((named + 1))
    done
    # Beside MPI a rank goes unnamed where the other has ended too before the command got a core.
    [ $named -ge $([ $peer = none ] && echo 2 || echo 1) ] || fail "--peer $peer: killed ranks are not named: $(cat "$scratch/err")"
done

# A report that is ended leaves neither what it measures nor pages.
before=$(echo /tmp/weft-report*)
"$weft" report --output "$scratch/report.html" >/dev/null 2>&1 &
front=$!
for try in $(seq 600); do
    [ -n "$(ranks_of $front)" ] && break
    sleep 0.05
done
started=$(descendants $front)
[ -n "$started" ] || fail "weft report starts nothing"
kill -9 $front
wait $front 2>/dev/null && fail "a killed report ended with status 0"
for try in $(seq 600); do
    kill -0 $started 2>/dev/null || break
    sleep 0.05
done
kill -0 $started 2>/dev/null && fail "a killed report leaves processes"
[ "$(echo /tmp/weft-report*)" = "$before" ] || fail "a killed report leaves files"

# An mpirun that cannot start ranks and, told to be quiet, does not say why (where there is a helper for it).
mkdir "$scratch/bin"
printf '#!/bin/sh\nexit 3\n' >"$scratch/bin/mpirun"
chmod +x "$scratch/bin/mpirun"
if ! PATH=$scratch/bin:$PATH timeout 60 "$weft" bench barrier --iters 5 >/dev/null 2>"$scratch/err"; then
    grep -qx 'weft bench: mpirun ended with status 3 .*--peer none.*' "$scratch/err" || fail "mpirun fails: unclear: $(cat "$scratch/err")"
fi

# A caller that ignores SIGCHLD.
for peer in none auto; do
    timeout 60 env --ignore-signal=CHLD "$weft" bench barrier --peer $peer --iters 5 >/dev/null || fail "a bench ends with $? where SIGCHLD is ignored"
done

# The rows come by pipes that only the ranks can open: there is no socket to connect to.
"$weft" bench barrier --peer none --iters 100000000 >/dev/null 2>&1 &
front=$!
for try in $(seq 600); do
    [ "$(ranks_of $front | wc -l)" = 2 ] && break
    sleep 0.05
done
for fd in /proc/$front/fd/*; do
    case $(readlink "$fd") in socket:*) fail "the command that takes the rows has a socket" ;; esac
done
kill $front
wait $front 2>/dev/null

# A bench that is killed leaves no shared memory of the MPI it was compared with (where there is one), nor does
# one whose keeper is killed, the process between it and mpirun. Once MPI has started not even killing both does.
# And an mpirun that has lost its keeper late has the time to take its own files away.
launcher_of()
{
    local keeper
    for keeper in $(cat /proc/$1/task/$1/children); do
        cat /proc/$keeper/task/$keeper/children
    done 2>/dev/null
}
shared_by()
{
    local keeper launcher
    for keeper in $(cat /proc/$1/task/$1/children); do
        for launcher in $(cat /proc/$keeper/task/$keeper/children); do
            tr '\0' '\n' </proc/$launcher/environ | sed -n 's/^OMPI_MCA_btl_vader_backing_directory=//p'
        done
    done 2>/dev/null
}
for victim in front keeper both late; do
    "$weft" bench ag_gemm 512 512 512 --iters 1000000 >/dev/null 2>&1 &
    front=$!
    for try in $(seq 600); do
        ranks=$(ranks_of $front | wc -l) # that mpirun starts have the directory before they are there
        directory=$(shared_by $front)
        { [ -n "$directory" ] || [ "$ranks" = 2 ]; } && break
        sleep 0.05
    done
    keeper=$(cat /proc/$front/task/$front/children)
    launcher=$(launcher_of $front | tr -d " ")
    for try in $(seq 600); do
        [ $victim = both ] || [ $victim = late ] || break
        [ -n "$directory" ] && [ -e "$directory" ] || break
        sleep 0.05
    done
    case $victim in
    front) kill -9 $front ;;
    keeper | late) kill -9 $keeper ;;
    both) kill -9 $front $keeper ;;
    esac
    wait $front 2>/dev/null && fail "a bench whose $victim was killed ends with 0"
    if [ -n "$directory" ]; then
        for try in $(seq 200); do
            [ -e "$directory" ] || break
            sleep 0.1
        done
        [ -e "$directory" ] && fail "a killed $victim left $directory: $(ls "$directory")"
        [ $victim = late ] && ls -d "${TMPDIR:-/tmp}"/ompi.*/pid."$launcher" >"$scratch/left" 2>/dev/null &&
            fail "a killed keeper left files of mpirun: $(cat "$scratch/left")"
    fi
done

[ $failures = 0 ]
