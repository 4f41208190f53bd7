/*
 * The interpreter lives as long as the row is measured, so that its products alternate with weft's. What is
 * timed is one line to it, the products, and one line back: a few microseconds on samples of some 40
 * milliseconds.
 */
#include "bench/gemm_torch.h"

#include "core/dtype.h"

#include <string.h>

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

int gemm_torch_open(interpreter *peer, const char *python, int64_t m, int64_t n, int64_t k, weft_dtype dtype,
                    int threads, int sets)
{
    char number[5][24];
    char *argv[] = {(char *)python, "-c", (char *)script, number[0], number[1],
                    number[2],      NULL, number[3],      number[4], NULL};

    memset(peer, 0, sizeof *peer);
    if (dtype == WEFT_I8)
        return 1;
    snprintf(number[0], sizeof number[0], "%lld", (long long)m);
    snprintf(number[1], sizeof number[1], "%lld", (long long)n);
    snprintf(number[2], sizeof number[2], "%lld", (long long)k);
    snprintf(number[3], sizeof number[3], "%d", threads);
    snprintf(number[4], sizeof number[4], "%d", sets);
    argv[6] = (char *)weft_dtype_name(dtype);
    return interpreter_open(peer, argv);
}

int gemm_torch_run(interpreter *peer, int calls)
{
    char word[8];

    if (fprintf(peer->ask, "%d\n", calls) < 0 || fflush(peer->ask) ||
        fscanf(peer->answer, "%7s", word) != 1 || strcmp(word, "done") != 0) {
        fprintf(stderr, "weft bench: %s stopped answering\n", peer->name);
        return 1;
    }
    return 0;
}
