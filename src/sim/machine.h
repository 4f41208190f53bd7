/*
 * A machine description: the numbers the simulator needs to say how long a task takes.
 *
 * It is a text file of lines `key value...  # where the number is from`. The descriptions in machines/
 * are compiled in and found by name; any other is given by path. This machine's own is written by
 * `weft calibrate`; without one, a generic CPU with as many cores as the process may use stands in.
 *
 * Two kinds. On a `gpu` machine every rank is a device with `units` multiprocessors, its own memory, copy
 * engines and ports to a link inside the node and a network between nodes. On a `cpu` machine the ranks of
 * a node share its `units` cores and its memory; moving bytes is a core's work, at a rate that depends on
 * how much data is handled (caches) and on how many cores do it at once.
 */
#ifndef WEFT_SIM_MACHINE_H
#define WEFT_SIM_MACHINE_H

#include "core/status.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    WEFT_MACHINE_DTYPES = WEFT_FP8_E5M2 + 1,
    WEFT_CURVE_POINTS = 16,
    WEFT_FEW_POINTS = 48,
    WEFT_MACHINE_MOST = 65536, /* of anything that is counted, and of a tile's extents */
    WEFT_MACHINE_SHORT_K = 512,
    WEFT_MACHINE_LONG_K = 4096,
};

typedef enum weft_machine_kind { WEFT_MACHINE_GPU, WEFT_MACHINE_CPU } weft_machine_kind;

typedef enum weft_link_kind {
    WEFT_LINK_SWITCH, /* every rank has one port each way; any pattern of partners */
    WEFT_LINK_MESH,   /* a link of its own for every ordered pair */
    WEFT_LINK_RING    /* a link each way to both neighbours; bytes pass through those between */
} weft_link_kind;

/* Bytes per nanosecond (GB/s) over bytes handled, of one core alone and of each core when all are busy. */
typedef struct weft_curve {
    int count;
    double bytes[WEFT_CURVE_POINTS]; /* ascending */
    double alone[WEFT_CURVE_POINTS], all[WEFT_CURVE_POINTS];
} weft_curve;

/*
 * What few rows of a product take of a core, all of which work, for each element of a B of so many bytes of
 * each; and for each of k, however wide B is. Both of a B that is not packed, with packing it where that is
 * done, and of one that is. Points by ascending rows, then bytes.
 */
typedef struct weft_few_rows {
    int count;
    double rows[WEFT_FEW_POINTS], bytes[WEFT_FEW_POINTS]; /* bytes 0: for each of k */
    double plain_ns[WEFT_FEW_POINTS], packed_ns[WEFT_FEW_POINTS];
} weft_few_rows;

typedef struct weft_machine {
    char name[48];
    char about[224];
    uint64_t id;   /* of the text it was read from: tells machines apart */
    bool outdated; /* has keys of an older calibration, which nothing goes by any more */
    char cpu[80];  /* cpu: the one that was measured; empty: none in particular */
    weft_machine_kind kind;
    int nodes;
    int ranks_per_node; /* cpu: 0 = as many as there are */
    int units;          /* gpu: multiprocessors of a rank; cpu: cores of a node */

    double gflops[WEFT_MACHINE_DTYPES]; /* of one unit, inside a full tile; 0 = no such product, or where
                                           it says nothing of fp8, as bfloat16, which cpus do */
    int64_t step_m, step_n, step_k;     /* a product costs as much as one rounded up to these */
    int64_t type_step_m[WEFT_MACHINE_DTYPES]; /* cpu: where the kernel of a type has others; 0 = as above */
    int64_t type_step_n[WEFT_MACHINE_DTYPES], type_step_k[WEFT_MACHINE_DTYPES];
    int64_t tile_m, tile_n, tile_k; /* of a GEMM task where the problem leaves it open; 0 = all */
    double memory_gbs;              /* gpu: of a rank's device; cpu: of a node */
    int copy_engines;               /* gpu: copies a rank has in flight beside its units */
    bool multicast;                 /* gpu: the link adds and spreads by itself */
    bool crews;                     /* gpu: weft has kernels for it whose tiles are plan/crews.h's, and
                                       whose stores add in a peer's memory */

    weft_link_kind link;
    double link_gbs, link_us;       /* of a port (switch) or of one link, each direction; first byte */
    double network_gbs, network_us; /* between nodes: of each rank, each direction; first byte */

    double launch_unfused_us, launch_fused_us; /* before the first task of a run */
    double launch_graph_us;                    /* gpu: the same where the run is captured in a graph */
    double enter_us; /* gpu: a collective whose ranks enter and are done, beyond its flags */

    /* gpu: what a vendor's libraries reach (sim/library.h) */
    double launch_library_us; /* a kernel of theirs, launched by the host */
    double library_gbs;       /* of a large collective inside a node, as bus bandwidth; 0 = all links */
    double multicast_gbs, multicast_us; /* what passes a rank's port where the switch adds; beside that */

    double gemm_us, copy_us, reduce_us; /* each task, beside its work */
    double flag_us;                     /* from a post to a wait that sees it, inside a node */

    /* cpu only */
    double switch_us;                       /* a core turning from one rank to another */
    double pack_a_gbs[WEFT_MACHINE_DTYPES]; /* reading rows of A and laying them out for the kernel */
    double pack_b_gbs[WEFT_MACHINE_DTYPES]; /* the same for B */
    double edge_ns[WEFT_MACHINE_DTYPES];    /* each of k, where columns of B end within a micro-tile, beside
                                               whole ones: of a B that is packed; */
    double edge_place_ns[WEFT_MACHINE_DTYPES]; /* read as it lies */
    double acc_gbs[WEFT_MACHINE_DTYPES];       /* sums a product starts from, by what it takes longer; 0 = as
                                                  copy_own */
    double twice_gbs[WEFT_MACHINE_DTYPES];     /* results a product stores to one more place, likewise; 0 = as
                                                  copy_push */
    double stream_gbs[WEFT_MACHINE_DTYPES];    /* reading a packed B once */
    weft_few_rows few[WEFT_MACHINE_DTYPES];    /* of up to WEFT_GEMM_STREAM_ROWS rows; none = as of many, or
                                                  as long as reading B takes */
    double finish_ns[WEFT_MACHINE_DTYPES];     /* each element of a result of this type: epilogue, conversion,
                                                  store */
    double gflops_long[WEFT_MACHINE_DTYPES];   /* of more rows and a k of WEFT_MACHINE_LONG_K, a share of the
                                                  way there from WEFT_MACHINE_SHORT_K on; 0 = as gflops */
    double epilogue_ns[WEFT_MACHINE_DTYPES]; /* as finish_ns where sums wait for it in memory, as those of few
                                                rows do; 0 = as finish_ns */
    double round_ns[WEFT_MACHINE_DTYPES];    /* each sum that a REDUCE rounds to this type, beside adding; 0 =
                                                as epilogue_ns */
    double row_ns[WEFT_MACHINE_DTYPES];      /* each row that a REDUCE adds up to this type; 0 = nothing */
    double shared_gbs[WEFT_MACHINE_DTYPES]; /* results a product stores to lines that a peer has read, by what
                                               it takes longer; 0 = nothing */
    double cache_bytes;                     /* a core's own: what a run has within them stays; 0 = nothing */
    double parts_gbs; /* parts of rows copied from a peer that copies the others; 0 = as copy_pull */
    weft_few_rows few_results[WEFT_MACHINE_DTYPES]; /* of so many rows each column of results, at bytes 0;
                                                       none = finish_ns or epilogue_ns each */
    weft_curve store; /* results of a product, by all that is stored; none = as copy_own */
    weft_curve copy_own, copy_pull, copy_push; /* bytes copied: within a rank, from a peer, to a peer */
    weft_curve reduce[WEFT_MACHINE_DTYPES];    /* bytes of all sources, where every rank adds its own slice */
    weft_curve reduce_shared;                  /* at most this, where every rank reads all of every source */
    weft_curve reduce_push; /* results of a sum stored to one more place, a peer's, by what adding takes
                               longer; none = twice as fast as copy_push */
} weft_machine;

/* Reads a description; `where` names it in messages ("machines/x.machine"). */
weft_status weft_machine_parse(const char *text, const char *where, weft_machine *machine,
                               weft_error_text *error);

/*
 * By name (a description compiled in), by path (anything with a '/' or ending in .machine), or for NULL
 * and "this" the machine weft runs on: WEFT_MACHINE, else what `weft calibrate` wrote, else generic.
 * "this_gpu" is what `weft calibrate --backend cuda` wrote.
 */
weft_status weft_machine_find(const char *name, weft_machine *machine, weft_error_text *error);

/* Where `weft calibrate` writes: $XDG_CONFIG_HOME/weft/machine, or ~/.config/weft/machine; and with --backend
 * cuda: gpu.machine beside it. */
weft_status weft_machine_user_path(char *path, size_t bytes, weft_error_text *error);
weft_status weft_machine_gpu_path(char *path, size_t bytes, weft_error_text *error);

/* The names compiled in: index 0, 1, ...; NULL past the last. */
const char *weft_machine_builtin_name(int index);

double weft_curve_rate(const weft_curve *curve, double bytes, bool all);

/* Of so many rows, which micro-tiles of `mr` make: for each element of B, and for each of k (bytes 0). */
double weft_few_rows_ns(const weft_few_rows *few, int64_t rows, int64_t mr, double bytes, bool packed);

#endif
