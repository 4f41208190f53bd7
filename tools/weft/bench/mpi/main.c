/*
 * The ranks of `weft bench` with an MPI library in the same processes, so that the two can alternate.
 *
 * A separate executable, because the command itself must run where no MPI is installed. It is the bench plus
 * this table of MPI calls. Errors of MPI end the job, as MPI does by default.
 */
#include "bench/bench.h"
#include "bench/start.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

static MPI_Datatype type_of(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_F32:
        return MPI_FLOAT;
    case WEFT_I32:
        return MPI_INT32_T;
    case WEFT_I64:
        return MPI_INT64_T;
    case WEFT_I8:
        return MPI_INT8_T;
    case WEFT_U8:
        return MPI_UINT8_T;
    case WEFT_F64:
        return MPI_DOUBLE;
    default:
        return MPI_BYTE;
    }
}

static MPI_Op op_of(weft_reduction reduction)
{
    switch (reduction) {
    case WEFT_MIN:
        return MPI_MIN;
    case WEFT_MAX:
        return MPI_MAX;
    case WEFT_PRODUCT:
        return MPI_PROD;
    default:
        return MPI_SUM;
    }
}

static void barrier(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
}

static void all_reduce(const void *send, void *recv, int64_t count, weft_dtype dtype,
                       weft_reduction reduction)
{
    MPI_Allreduce(send, recv, (int)count, type_of(dtype), op_of(reduction), MPI_COMM_WORLD);
}

static void reduce_scatter(const void *send, void *recv, const int *counts, weft_dtype dtype,
                           weft_reduction reduction)
{
    MPI_Reduce_scatter(send, recv, counts, type_of(dtype), op_of(reduction), MPI_COMM_WORLD);
}

static void all_gather(const void *send, int64_t bytes, void *recv)
{
    MPI_Allgather(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void all_gather_v(const void *send, void *recv, const int *counts, const int *offsets,
                         weft_dtype dtype)
{
    int rank;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allgatherv(send, counts[rank], type_of(dtype), recv, counts, offsets, type_of(dtype), MPI_COMM_WORLD);
}

static void all_to_all(const void *send, int64_t bytes, void *recv)
{
    MPI_Alltoall(send, (int)bytes, MPI_BYTE, recv, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void all_to_all_v(const void *send, const int *send_bytes, const int *send_offsets, void *recv,
                         const int *recv_bytes, const int *recv_offsets)
{
    MPI_Alltoallv(send, send_bytes, send_offsets, MPI_BYTE, recv, recv_bytes, recv_offsets, MPI_BYTE,
                  MPI_COMM_WORLD);
}

static void broadcast(void *data, int64_t bytes, int root)
{
    MPI_Bcast(data, (int)bytes, MPI_BYTE, root, MPI_COMM_WORLD);
}

/* "Open MPI v4.1.4, package: …" gives "Open MPI 4.1.4"; "MPICH Version:\t4.0.2\n…" gives "MPICH 4.0.2". */
static void name_of(char *name, size_t bytes)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length, major, minor, patch = 0;

    MPI_Get_library_version(version, &length);
    const char *digits = strpbrk(version, "0123456789");
    const char *who = strncmp(version, "Open MPI", 8) == 0 ? "Open MPI"
                      : strncmp(version, "MPICH", 5) == 0  ? "MPICH"
                                                           : "MPI";
    if (digits && sscanf(digits, "%d.%d.%d", &major, &minor, &patch) >= 2)
        snprintf(name, bytes, "%s %d.%d.%d", who, major, minor, patch);
    else
        snprintf(name, bytes, "%s", who);
}

/* A message between any two ranks makes them open each other's memory: then its files need no names. */
static void forget_files(void)
{
    int rank, size;
    char sent = 0, got;

    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int step = 1; step < size; step++)
        MPI_Sendrecv(&sent, 1, MPI_CHAR, (rank + step) % size, 0, &got, 1, MPI_CHAR,
                     (rank + size - step) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        bench_shared_forget();
}

int main(int argc, char **argv)
{
    bench_mpi mpi = {
        .barrier = barrier,
        .all_reduce = all_reduce,
        .reduce_scatter = reduce_scatter,
        .all_gather = all_gather,
        .all_gather_v = all_gather_v,
        .all_to_all = all_to_all,
        .all_to_all_v = all_to_all_v,
        .broadcast = broadcast,
    };

    bench_output_here();
    MPI_Init(&argc, &argv);
    forget_files();
    name_of(mpi.name, sizeof mpi.name);
    int status = bench_run_rank(argc - 1, argv + 1, &mpi);
    MPI_Finalize();
    /* The command got the status from rank 0; to mpirun any other would be a crash worth a page of text. */
    return bench_has_output() ? 0 : status;
}
