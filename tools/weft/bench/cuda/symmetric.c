/* See symmetric.h. */
#include "bench/cuda/symmetric.h"

#include "core/dtype.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 30 };

/*
 * Arguments: ranks, type. Ranks are forks of one interpreter, made before it knows of CUDA; rank 0 reads
 * "bytes calls rounds" and answers with the medians of one_shot, two_shot and multimem, from a barrier until
 * the last rank is done. It ends without taking apart what symmetric memory leaves in graphs.
 */
static const char script[] =
    "import os,sys,time,socket,statistics\n"
    "W=int(sys.argv[1]); r=0; os.sched_setaffinity(0,range(os.cpu_count()))\n" /* not only a rank's CPUs */
    "s=socket.socket(); s.bind(('127.0.0.1',0)); port=s.getsockname()[1]; s.close()\n"
    "os.environ.update(MASTER_ADDR='127.0.0.1',MASTER_PORT=str(port),WORLD_SIZE=str(W),\n"
    "  TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES='1')\n"
    "for i in range(1,W):\n"
    "  if os.fork()==0:\n"
    "    r=i; break\n"
    "os.environ['RANK']=str(r)\n"
    "import torch,torch.distributed as d,torch.distributed._symmetric_memory as symm\n"
    "t=getattr(torch,sys.argv[2]); torch.cuda.set_device(r%torch.cuda.device_count())\n"
    "d.init_process_group('gloo',rank=r,world_size=W); g=d.group.WORLD.group_name\n"
    "import warnings; warnings.simplefilter('ignore')\n" /* newer ones do it by themselves */
    "symm.enable_symm_mem_for_group(g); ops=torch.ops.symm_mem\n"
    "if r==0: print('ready',torch.__version__,flush=True)\n"
    "def graph_of(op,calls):\n"
    "  stream=torch.cuda.Stream()\n"
    "  with torch.cuda.stream(stream):\n"
    "    for _ in range(3): op()\n"
    "  torch.cuda.synchronize(); graph=torch.cuda.CUDAGraph()\n"
    "  with torch.cuda.graph(graph,stream=stream):\n"
    "    for _ in range(calls): op()\n"
    "  return graph\n"
    "while True:\n"
    "  q=torch.zeros(3,dtype=torch.int64)\n"
    "  if r==0: q=torch.tensor([int(x) for x in sys.stdin.readline().split()] or [0,0,0])\n"
    "  d.broadcast(q,0); size,calls,rounds=q.tolist()\n"
    "  if not size: break\n"
    "  b=symm.empty(size//t.itemsize,dtype=t,device='cuda'); h=symm.rendezvous(b,group=g); b.normal_()\n"
    "  shots=[lambda: ops.one_shot_all_reduce(b,'sum',g),lambda: ops.two_shot_all_reduce_(b,'sum',g)]\n"
    "  if h.multicast_ptr: shots.append(lambda: ops.multimem_all_reduce_(b,'sum',g))\n"
    "  graphs=[graph_of(op,calls) for op in shots]; times=[[] for _ in shots]\n"
    "  for i in range(rounds+2):\n"
    "    for graph,took in zip(graphs,times):\n"
    "      d.barrier(); begin=time.perf_counter(); graph.replay(); torch.cuda.synchronize()\n"
    "      e=torch.tensor([time.perf_counter()-begin],dtype=torch.float64)\n"
    "      d.all_reduce(e,d.ReduceOp.MAX); took.append(float(e)/calls*1e6)\n"
    "  best=[statistics.median(took[2:]) for took in times]+[float('nan')]\n"
    "  if r==0: print(*best[:3],flush=True)\n"
    "os._exit(0)\n";

/* What was asked for and is not in the rows is said, also to those who read JSON. */
static void leave_out(const bench_context *context, const char *why)
{
    if (context->rank == 0)
        fprintf(stderr, "weft bench: PyTorch is left out: %s\n", why);
}

void symmetric_open(bench_context *context, const weft_problem *p, interpreter *python)
{
    char ranks[16];
    char *argv[] = {(char *)bench_torch_python(),      "-c", (char *)script, ranks,
                    (char *)weft_dtype_name(p->dtype), NULL};

    memset(python, 0, sizeof *python);
    if (!bench_torch_python())
        return;
    if (p->op != WEFT_OP_ALL_REDUCE || p->reduction != WEFT_SUM ||
        (p->dtype != WEFT_F32 && p->dtype != WEFT_BF16)) {
        leave_out(context, "its symmetric memory sums float32 and bfloat16 by all_reduce");
        return;
    }
    snprintf(ranks, sizeof ranks, "%d", context->size);
    report_progress(&context->report, "PyTorch starts");
    if (context->rank == 0 && interpreter_open(python, argv))
        leave_out(context, "its symmetric memory does not start on these GPUs");
    python->pid = (pid_t)bench_max(context, (double)python->pid);
}

bool symmetric_measure(bench_context *context, interpreter *python, int64_t bytes, int calls,
                       symmetric_times *times)
{
    double mine[3] = {NAN, NAN, NAN}, all[3 * (size_t)context->size];

    if (!python->pid)
        return false;
    report_progress(&context->report, "PyTorch, %lld bytes", (long long)bytes);
    if (context->rank == 0 &&
        (fprintf(python->ask, "%lld %d %d\n", (long long)bytes, calls, ROUNDS) < 0 || fflush(python->ask) ||
         fscanf(python->answer, "%lf %lf %lf", &mine[0], &mine[1], &mine[2]) != 3))
        leave_out(context, "its processes failed");
    if (bench_share(context, mine, 3, all) == 0 && isfinite(all[0]) && isfinite(all[1])) {
        *times = (symmetric_times){all[0], all[1], all[2]};
        return true;
    }
    if (context->rank == 0)
        interpreter_close(python);
    python->pid = 0;
    return false;
}

double symmetric_best(const symmetric_times *times)
{
    return fmin(fmin(times->one_shot, times->two_shot), times->multimem); /* fmin passes over NaN */
}
