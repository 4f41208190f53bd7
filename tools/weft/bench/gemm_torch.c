/*
 * The interpreter lives as long as the row is measured, so that its products alternate with weft's. What is
 * timed is one line to it, the products, and one line back: a few microseconds on samples of some 40
 * milliseconds.
 */
#include "bench/gemm_torch.h"

#include "core/dtype.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Arguments: m n k dtype threads sets. */
static const char script[] = "import sys,torch\n"
                             "m,n,k=map(int,sys.argv[1:4]); t=getattr(torch,sys.argv[4])\n"
                             "torch.set_num_threads(int(sys.argv[5])); c=int(sys.argv[6]); i=0\n"
                             "u=lambda a,b: (torch.rand(a,b)*2-1).to(t)\n"
                             "s=[(u(m,k),u(k,n)) for _ in range(c)]; torch.matmul(*s[0])\n"
                             "print('ready',torch.__version__,flush=True)\n"
                             "for line in sys.stdin:\n"
                             "  for _ in range(int(line)):\n"
                             "    torch.matmul(*s[i%c]); i+=1\n"
                             "  print('done',flush=True)\n";

static pid_t start(char *const argv[], int *to, int *from)
{
    int in[2], out[2];
    pid_t pid = -1;

    if (pipe(in))
        return -1;
    if (pipe(out) == 0) {
        pid = fork();
        if (pid == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            close(in[0]);
            close(in[1]);
            close(out[0]);
            close(out[1]);
            execvp(argv[0], argv);
            fprintf(stderr, "weft bench: %s: %s\n", argv[0], strerror(errno));
            _exit(127);
        }
        close(out[1]);
        if (pid < 0)
            close(out[0]);
        *from = out[0];
    }
    close(in[0]);
    if (pid < 0)
        close(in[1]);
    *to = in[1];
    return pid;
}

int gemm_torch_open(gemm_torch *peer, const char *python, int64_t m, int64_t n, int64_t k, weft_dtype dtype,
                    int threads, int sets)
{
    char number[5][24], version[40];
    char *argv[] = {(char *)python, "-c", (char *)script, number[0], number[1],
                    number[2],      NULL, number[3],      number[4], NULL};
    int to, from;

    memset(peer, 0, sizeof *peer);
    if (dtype == WEFT_I8)
        return 1;
    snprintf(number[0], sizeof number[0], "%lld", (long long)m);
    snprintf(number[1], sizeof number[1], "%lld", (long long)n);
    snprintf(number[2], sizeof number[2], "%lld", (long long)k);
    snprintf(number[3], sizeof number[3], "%d", threads);
    snprintf(number[4], sizeof number[4], "%d", sets);
    argv[6] = (char *)weft_dtype_name(dtype);
    signal(SIGPIPE, SIG_IGN); /* an interpreter that died is seen when it is asked */
    peer->pid = start(argv, &to, &from);
    if (peer->pid < 0) {
        peer->pid = 0;
        return 1;
    }
    peer->ask = fdopen(to, "w");
    peer->answer = fdopen(from, "r");
    if (!peer->ask || !peer->answer || fscanf(peer->answer, "ready %39s", version) != 1) {
        gemm_torch_close(peer);
        return 1;
    }
    snprintf(peer->name, sizeof peer->name, "PyTorch %s", version);
    return 0;
}

int gemm_torch_run(gemm_torch *peer, int calls)
{
    char word[8];

    if (fprintf(peer->ask, "%d\n", calls) < 0 || fflush(peer->ask) ||
        fscanf(peer->answer, "%7s", word) != 1 || strcmp(word, "done") != 0) {
        fprintf(stderr, "weft bench: %s stopped answering\n", peer->name);
        return 1;
    }
    return 0;
}

void gemm_torch_close(gemm_torch *peer)
{
    if (!peer->pid)
        return;
    if (peer->ask)
        fclose(peer->ask); /* the end of its input ends it */
    if (peer->answer)
        fclose(peer->answer);
    while (waitpid(peer->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    peer->pid = 0;
}
