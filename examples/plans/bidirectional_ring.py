#!/usr/bin/env python3
"""Writes a plan that weft does not have: all-gather + GEMM over a ring that turns both ways.

Rank r holds rows part r of A and columns part r of B; it gets D = A B for its columns. Shards of A travel over
the ring: every rank fetches from its left neighbour what that has, shard after shard, and the same from its
right neighbour, so that each shard comes the shorter way. A product starts when its shard is there.

    bidirectional_ring.py RANKS M N K > ring.plan
    weft plan --from ring.plan --check
    weft sim --plan ring.plan --machine h100x8
"""
import sys


def part(extent, world, rank):
    """What of an extent lies on a rank: sizes differ by one at most, the longer ones first."""
    size, rest = divmod(extent, world)
    begin = rank * size + min(rank, rest)
    return begin, begin + size + (rank < rest)


def write_rank(me, world, m, n, k):
    left, right = (me - 1) % world, (me + 1) % world
    hops = {-1: world // 2, 1: (world - 1) // 2}  # shards that come from the left, from the right
    columns = part(n, world, me)[1] - part(n, world, me)[0]

    # Signals: ENTER and DONE of every rank; then for each direction "my neighbour has its next shard", and "I have".
    theirs = {-1: 2 * world, 1: 2 * world + 1}
    mine = {-1: 2 * world + 2, 1: 2 * world + 3}
    lanes = [("compute", []), ("copy", []), ("copy", [])]

    def rows(rank):
        return "%d:%d" % part(m, world, rank)

    def own_rows(rank):
        begin, end = part(m, world, rank)
        return "0:%d" % (end - begin)

    # What comes from one side, nearest shard first; each is announced to the neighbour on the other side.
    for lane, side, source, reader in ((1, -1, left, right), (2, 1, right, left)):
        for hop in range(1, hops[side] + 1):
            shard = (me + side * hop) % world
            origin = "A@%d[%s, 0:%d]" % (source, own_rows(shard), k) if hop == 1 else \
                     "gathered@%d[%s, 0:%d]" % (source, rows(shard), k)
            waits = ["%d>=1" % source] if hop == 1 else ["%d>=%d" % (theirs[side], hop - 1)]
            posts = ["%d@%d" % (mine[side], me)]
            if hop < hops[side]:  # the reader fetches it from here
                posts.append("%d@%d" % (theirs[side], reader))
                if hop == 1 and reader != source:
                    waits.append("%d>=1" % reader)
            lanes[lane][1].append("COPY gathered[%s, 0:%d] = %s wait %s post %s" %
                                  (rows(shard), k, origin, " ".join(waits), " ".join(posts)))

    touched = sorted({left, right} - {me})
    others = [r for r in range(world) if r != me]
    enter = ["%d@%d" % (me, r) for r in others] + ["%d@%d" % (world + me, r) for r in others if r not in touched]
    tasks = lanes[0][1]
    tasks.append("ENTER" + (" post " + " ".join(enter) if enter else ""))
    tasks.append("GEMM D[%s, 0:%d] = A[%s, 0:%d] * B[0:%d, 0:%d] epilogue" %
                 (rows(me), columns, own_rows(me), k, k, columns))
    order = [(hop, side) for hop in range(1, world) for side in (-1, 1) if hop <= hops[side]]
    for hop, side in order:
        shard = (me + side * hop) % world
        tasks.append("GEMM D[%s, 0:%d] = gathered[%s, 0:%d] * B[0:%d, 0:%d] epilogue wait %d>=%d" %
                     (rows(shard), columns, rows(shard), k, k, columns, mine[side], hop))
    # All copies are over when the last products start: the neighbours are told that they are left alone.
    if touched:
        tasks[-1] += " post " + " ".join("%d@%d" % (world + me, r) for r in touched)
    tasks.append("EXIT" + (" wait " + " ".join("%d>=1" % (world + r) for r in others) if others else ""))

    print("plan ag_gemm custom rank %d of %d" % (me, world))
    print("problem m %d n %d k %d b_form plain layout gather_a workers 1" % (m, n, k))
    print("operand A user float32 %d x %d rows-parted" % (m, k))
    print("operand B user float32 %d x %d cols-parted" % (k, n))
    print("operand D user float32 %d x %d cols-parted output" % (m, n))
    print("operand gathered staging float32 %d x %d" % (m, k))
    print("signals %d" % (2 * world + 4))
    for number, (kind, _) in enumerate(lanes):
        print("lane %d %s" % (number, kind))
    count = 0
    for number, (_, lane) in enumerate(lanes):
        for task in lane:
            print("r%d lane %d task %d %s" % (me, number, count, task))
            count += 1


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    world, m, n, k = map(int, sys.argv[1:])
    for rank in range(world):
        write_rank(rank, world, m, n, k)


if __name__ == "__main__":
    main()
