#!/usr/bin/env python3
"""Writes a plan that weft does not have: all_reduce over a ring.

Slice by slice, a sum goes once round the ring: rank s + 1 adds its part of slice s to that of rank s, rank s + 2
its own to what it is handed, and so on; the last rank of the way has the whole sum. That one goes round once more
by copies. Every rank sends to its right neighbour alone, 2 (W - 1) / W of the buffer. Each slice is added up
once, in one order, so that all ranks get the same bits.

    ring_all_reduce.py RANKS COUNT [DTYPE] > ring.plan
    weft plan --from ring.plan --check
    weft sim --plan ring.plan --machine h100x8
    weft bench --plan ring.plan
"""
import sys


def part(extent, world, rank):
    """What of an extent lies on a rank: sizes differ by one at most, the longer ones first."""
    size, rest = divmod(extent, world)
    begin = rank * size + min(rank, rest)
    return begin, begin + size + (rank < rest)


def write_rank(me, world, count, dtype):
    left, right = (me - 1) % world, (me + 1) % world
    others = [r for r in range(world) if r != me]

    def slice_of(number):
        return "0:1, %d:%d" % part(count, world, number % world)

    # Signals: ENTER and DONE of every rank; then "your left neighbour has handed you its next sum", and "its next
    # result". Each is posted by one task after another of one lane, so that a count says which.
    handed, arrived = 2 * world, 2 * world + 1
    tasks = ["ENTER"]
    if world == 1:
        tasks.append("COPY recv[0:1, 0:%d] = send[0:1, 0:%d]" % (count, count))
    else:
        tasks[0] += " post " + " ".join(
            ["%d@%d" % (me, r) for r in others] + ["%d@%d" % (world + me, r) for r in others if r != right])
    # Round one: of slice me, my own part; then what the left neighbour has handed me of slice me - 1, and mine.
    for step in range(world - 1):
        piece = slice_of(me - step)
        source = "send[%s]" % piece
        sums = "sums@%d[%s]" % (right, piece)
        if step == 0:  # to touch the right neighbour, wait for its ENTER
            tasks.append("COPY %s = %s wait %d>=1 post %d@%d" % (sums, source, right, handed, right))
        else:
            tasks.append("REDUCE %s = sums[%s] + %s wait %d>=%d post %d@%d" %
                         (sums, piece, source, handed, step, handed, right))
    # The sum of slice me + 1 is complete here; the second round begins with it.
    for step in range(world if world > 1 else 0):
        piece = slice_of(me + 1 - step)
        if step == 0:
            tasks.append("REDUCE recv[%s], recv@%d[%s] = sums[%s] + send[%s] wait %d>=%d post %d@%d" %
                         (piece, right, piece, piece, piece, handed, world - 1, arrived, right))
        elif step < world - 1:
            tasks.append("COPY recv@%d[%s] = recv[%s] wait %d>=%d post %d@%d" %
                         (right, piece, piece, arrived, step, arrived, right))
    if world > 1:  # what this rank has done to the right neighbour it has done by now
        tasks[-1] += " %d@%d" % (world + me, right)
        tasks.append("EXIT wait %s" % " ".join(["%d>=1" % (world + r) for r in others]))
    else:
        tasks.append("EXIT")

    print("plan all_reduce custom rank %d of %d" % (me, world))
    print("problem count %d dtype %s reduction sum workers 1" % (count, dtype))
    print("operand send user %s 1 x %d" % (dtype, count))
    print("operand recv user %s 1 x %d output" % (dtype, count))
    print("operand sums staging %s 1 x %d" % (dtype, count))
    print("signals %d" % (2 * world + 2))
    print("lane 0 compute")
    for number, task in enumerate(tasks):
        print("r%d lane 0 task %d %s" % (me, number, task))


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    for rank in range(int(sys.argv[1])):
        write_rank(rank, int(sys.argv[1]), int(sys.argv[2]), (sys.argv + ["float32"])[3])


if __name__ == "__main__":
    main()
