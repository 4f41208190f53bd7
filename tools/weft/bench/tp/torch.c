/*
 * PyTorch and its gloo collectives as a peer: the same product over as many processes, timed from a barrier
 * to the last rank's end. It cannot alternate inside weft's processes, so it runs after them, while they
 * wait.
 */
#include "bench/tp/bench_tp.h"

#include "core/dtype.h"
#include "plan/plan.h"

#include <math.h>

/* Ranks are forks of one interpreter; arguments: op m n k ranks threads dtype. Prints version and
 * microseconds. */
static const char script[] =
    "import os,sys,time,tempfile\n"
    "op,m,n,k,W,T,t=sys.argv[1],*map(int,sys.argv[2:7]),sys.argv[7]\n"
    "store=tempfile.mktemp(); r=0\n"
    "for i in range(1,W):\n"
    "  if os.fork()==0:\n"
    "    r=i; break\n"
    "import torch,torch.distributed as d\n"
    "torch.set_num_threads(T); t=getattr(torch,t)\n"
    "d.init_process_group(\"gloo\",init_method=\"file://\"+store,rank=r,world_size=W)\n"
    "u=lambda a,b: (torch.rand(a,b)*2-1).to(t)\n"
    "ag,rs=op==\"ag_gemm\",op in (\"gemm_rs\",\"gemm_ar\")\n"
    "sets=[(u(m//W if ag else m,k//W if rs else k),u(k//W if rs else k,n if rs else n//W)) for _ in "
    "range(3)]\n"
    "def run(a,b):\n"
    "  if ag:\n"
    "    g=[torch.empty_like(a) for _ in range(W)]; d.all_gather(g,a); return torch.cat(g)@b\n"
    "  c=a@b\n"
    "  if op==\"gemm_as\":\n"
    "    g=[torch.empty_like(c) for _ in range(W)]; d.all_gather(g,c); return torch.cat(g,1)\n"
    "  if op==\"gemm_rs\":\n"
    "    try:\n"
    "      o=torch.empty(m//W,n,dtype=t); d.reduce_scatter_tensor(o,c); return o\n"
    "    except (RuntimeError,NotImplementedError): pass\n"
    "  d.all_reduce(c); return c\n"
    "times=[]; begin=time.time()\n"
    "for i in range(40):\n"
    "  d.barrier(); x=time.perf_counter(); run(*sets[i%3])\n"
    "  e=torch.tensor([time.perf_counter()-x,time.time()-begin]); d.all_reduce(e,op=d.ReduceOp.MAX)\n"
    "  times.append(float(e[0]))\n"
    "  if i>=8 and float(e[1])>10: break\n"
    "times=sorted(times[3:])\n"
    "if r==0: print(torch.__version__,times[len(times)//2]*1e6,flush=True)\n"
    "d.destroy_process_group()\n"
    "if r: os._exit(0)\n"
    "for i in range(1,W): os.wait()\n";

static bool torch_can(const weft_problem *p, int world)
{
    bool plain = p->l == 1 && p->beta == 0 && p->alpha == 1 && !p->bias && p->act == WEFT_ACT_NONE &&
                 !p->transa && !p->transb && p->dtype <= WEFT_BF16;

    /* gloo gathers equal parts only */
    return plain && p->m % world == 0 && p->n % world == 0 && p->k % world == 0 &&
           p->layout != WEFT_LAYOUT_GATHER_B && p->layout != WEFT_LAYOUT_SCATTER_COLS;
}

static double ask(bench_context *context, const weft_problem *p, char *name, size_t bytes)
{
    char command[sizeof script + 512], version[32];
    double us = NAN;

    /* The launcher's variables must not reach torch.distributed: it would join the wrong job. */
    snprintf(command, sizeof command,
             "env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT '%s' -c '%s' %s %lld %lld %lld %d %d "
             "%s 2>/dev/null",
             bench_torch_python(), script, weft_op_name(p->op), (long long)p->m, (long long)p->n,
             (long long)p->k, context->size, context->threads, weft_dtype_name(p->dtype));
    FILE *pipe = popen(command, "r");
    if (!pipe)
        return NAN;
    if (fscanf(pipe, "%31s %lf", version, &us) == 2)
        snprintf(name, bytes, "PyTorch %s + gloo", version);
    else
        us = NAN;
    pclose(pipe);
    return us;
}

/* What was asked for and is not in the rows is said, also to those who read JSON. */
static void leave_out(const bench_context *context, const weft_problem *p, const char *why)
{
    if (context->rank == 0)
        fprintf(stderr, "weft bench: PyTorch is left out of %lld x %lld x %lld: %s\n", (long long)p->m,
                (long long)p->n, (long long)p->k, why);
}

double tp_torch_us(bench_context *context, const weft_problem *problem, char *name, size_t bytes)
{
    double us = NAN, all[context->size];

    if (!bench_torch_python())
        return NAN;
    if (!torch_can(problem, context->size)) {
        leave_out(context, problem,
                  "it computes A B alone, of floats, and gloo gathers and scatters equal parts of rows");
        return NAN;
    }
    report_progress(&context->report, "PyTorch");
    if (context->rank == 0) {
        us = ask(context, problem, name, bytes);
        if (isnan(us))
            leave_out(context, problem, "its processes failed");
    }
    return bench_share(context, &us, 1, all) == 0 ? all[0] : NAN;
}
