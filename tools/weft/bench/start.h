/* Starting the ranks of a bench and getting rank 0's output and status back. */
#ifndef WEFT_TOOLS_BENCH_START_H
#define WEFT_TOOLS_BENCH_START_H

#include "cli/options.h"

/* Whether a launcher (this one, `weft run`, mpirun, torchrun, srun) has started this process as a rank. */
bool bench_is_rank(void);

/* Whether ranks can be started with an MPI library in them. */
bool bench_has_mpi(void);

/* Starts the ranks with the same arguments, as if on several `nodes` (NULL: one), in processes with MPI when
 * `with_mpi` and there is one, copies what rank 0 prints to standard output, and returns its exit status. */
int bench_launch(const weft_options *options, int argc, char **argv, const char *nodes, bool with_mpi);

/* The command whose ranks they are, and that says what went wrong: bench, unless another is named. */
void bench_speak_as(const char *command);

/* In a rank: whether the command that started it takes the output and status of rank 0. */
bool bench_has_output(void);

/* In a rank: where rank 0 prints, and how it ends that with its status. */
FILE *bench_output_open(int rank);
void bench_output_close(FILE *out, int status);

/* In a rank that mpirun has started: tells the command which process it is. */
void bench_output_here(void);

/* In a rank: says what went wrong, by the command that takes the output or on standard error. */
void bench_output_say(const char *line);

/* For ranks beside MPI, when all have opened the files through which it shares memory: takes their names
 * away. */
void bench_shared_forget(void);

#endif
