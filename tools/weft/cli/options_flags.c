/* The rows of the flag table, the values with their own syntax, and --help. See options.h. */
#include "cli/options_flags.h"

#include "core/dtype.h"
#include "plan/plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_RANKS = 65536 };

/* ---- values with their own syntax ----------------------------------------------------------------- */

static const char *read_dtype(void *target, const char *value)
{
    weft_options *options = target;
    weft_dtype dtype;

    if (weft_dtype_parse(value, &dtype) != 0)
        return "one of float32 (f32), bfloat16 (bf16), float16 (f16), int8 (i8), float8_e4m3fn (fp8_e4m3), "
               "float8_e5m2 (fp8_e5m2); collectives also int32, int64";
    options->problem.dtype = dtype;
    options->dtype_given = true;
    return NULL;
}

static const char *read_wire(void *target, const char *value)
{
    weft_options *options = target;

    if (weft_dtype_parse(strcmp(value, "fp8") ? value : "fp8_e4m3", &options->wire_dtype) != 0 ||
        (options->wire_dtype > WEFT_BF16 && options->wire_dtype != WEFT_FP8_E4M3))
        return "one of float32 (f32), bfloat16 (bf16), float16 (f16), for moe fp8";
    options->wire_given = true;
    return NULL;
}

static const char *read_schedule(void *target, const char *value)
{
    weft_options *options = target;

    options->schedule_given = true;
    options->impl = value;
    options->schedule_wanted = NULL;
    options->schedule_all = strcasecmp(value, "all") == 0;
    if (!options->schedule_all && weft_schedule_parse(value, &options->problem.schedule) != 0)
        options->schedule_wanted = "auto, all, or a schedule of the operation (weft bench --help lists them)";
    return NULL;
}

static const char *read_collective(void *target, const char *value)
{
    weft_options *options = target;

    if (strcmp(value, "all_reduce") && strcmp(value, "all_scatter") && strcmp(value, "all_gather"))
        return "all_reduce (gemm_ar), all_scatter (gemm_as) or all_gather (gemm_as, unfused: the reference)";
    options->collective = value;
    return NULL;
}

static const char *read_gather(void *target, const char *value)
{
    static const char *const names[] = {"a", "b", "a_k", "b_k"};
    static const weft_layout layouts[] = {WEFT_LAYOUT_GATHER_A, WEFT_LAYOUT_GATHER_B, WEFT_LAYOUT_GATHER_A_K,
                                          WEFT_LAYOUT_GATHER_B_K};
    weft_options *options = target;

    for (int i = 0; i < 4; i++) {
        if (strcasecmp(value, names[i]) == 0) {
            options->problem.layout = layouts[i];
            return NULL;
        }
    }
    return "a or b: the operand that is gathered; a_k or b_k: along k (plan and sim)";
}

static const char *read_scatter(void *target, const char *value)
{
    weft_options *options = target;

    if (strcmp(value, "rows") && strcmp(value, "cols"))
        return "rows or cols: what a rank keeps of the result";
    options->problem.layout =
        strcmp(value, "rows") == 0 ? WEFT_LAYOUT_SCATTER_ROWS : WEFT_LAYOUT_SCATTER_COLS;
    return NULL;
}

static const char *read_act(void *target, const char *value)
{
    static const char *const names[] = {"none",       "relu",       "gelu",      "silu",
                                        "relu_gated", "gelu_gated", "silu_gated"};
    weft_options *options = target;

    for (int i = 0; i < 7; i++) {
        if (strcasecmp(value, names[i]) == 0) {
            options->problem.act = (weft_act)i;
            return NULL;
        }
    }
    return "one of none, relu, gelu, silu, or of these but none with _gated";
}

static const char *read_backend(void *target, const char *value)
{
    if (strcmp(value, "cpu") && strcmp(value, "cuda"))
        return "cpu or cuda";
    *(bool *)target = strcmp(value, "cuda") == 0;
    return NULL;
}

static const char *read_packed(void *target, const char *value)
{
    weft_options *options = target;

    if (strcmp(value, "run") && strcmp(value, "before") && strcmp(value, "never"))
        return "run (each run packs B), before (weights packed once) or never";
    options->pack_given = true;
    options->problem.b_form = value[0] == 'r'   ? WEFT_B_PACK_IN_RUN
                              : value[0] == 'b' ? WEFT_B_PREPACKED
                                                : WEFT_B_PLAIN;
    return NULL;
}

/* "65536", "64K", "16M": bytes. Returns where reading stopped, NULL when there was no number. */
static const char *read_size(const char *text, int64_t *size)
{
    char *end;

    errno = 0;
    long long number = strtoll(text, &end, 10);
    if (end == text || errno || number < 1 || number > OPTIONS_MOST_EXTENT)
        return NULL;
    int shift = 0;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (shift)
        end++;
    if (number > (OPTIONS_MOST_EXTENT >> shift))
        return NULL;
    *size = (int64_t)number << shift;
    return end;
}

static const char *read_bytes(void *target, const char *value)
{
    static const char *const wanted = "a size (4096, 64K, 16M) or first:last, doubled in between (64:16M)";
    weft_options *options = target;
    const char *rest = read_size(value, &options->bytes_first);

    options->bytes_last = options->bytes_first;
    if (rest && *rest == ':')
        rest = read_size(rest + 1, &options->bytes_last);
    if (!rest || *rest || options->bytes_last < options->bytes_first)
        return wanted;
    return NULL;
}

static const char *read_seed(void *target, const char *value)
{
    char *end;

    errno = 0;
    *(uint64_t *)target = strtoull(value, &end, 0);
    return end == value || *end || errno || *value == '-' ? "a whole number" : NULL;
}

static const char *read_reduction(void *target, const char *value)
{
    static const char *const names[] = {"sum", "min", "max", "product", "average"};
    weft_options *options = target;

    for (int i = 0; i <= WEFT_AVERAGE; i++) {
        if (strcasecmp(value, names[i]) == 0) {
            options->problem.reduction = (weft_reduction)i;
            return NULL;
        }
    }
    return "one of sum, min, max, product, average";
}

/* ---- the table ------------------------------------------------------------------------------------ */

/* Fields of weft_problem that are neither int64_t nor double go through these. */
static const char *read_alpha(void *target, const char *value)
{
    char *end;

    *(float *)target = strtof(value, &end);
    return end == value || *end || !isfinite(*(float *)target) ? "a finite number" : NULL;
}

static const char *read_on(void *target, const char *value)
{
    (void)value;
    *(int *)target = 1;
    return NULL;
}

/* `weft tune` finds schedules, tiles and threads itself, and draws nothing. */
static bool is_taken(const char *command, const options_flag *flag)
{
    static const char *const found[] = {
        "--schedule|--impl", "--BLOCK_SIZE_M", "--BLOCK_SIZE_N", "--BLOCK_SIZE_K",
        "--threads",         "--trace",        "--svg"};

    for (size_t i = 0; strcmp(command, "tune") == 0 && i < sizeof found / sizeof found[0]; i++)
        if (strcmp(flag->names, found[i]) == 0)
            return false;
    return true;
}

static int append(options_flag *flags, int count, const options_flag *table, size_t bytes)
{
    memcpy(flags + count, table, bytes);
    return count + (int)(bytes / sizeof *table);
}

int options_problem_flags(weft_options *o, const char *command, options_flag *flags)
{
    weft_problem *p = &o->problem;
    const double extent = (double)OPTIONS_MOST_EXTENT;
    const options_flag table[] = {
        {"-n|--ranks|--tp|--num-gpus", "W", OPTIONS_INT, &o->ranks, NULL, 1, MOST_RANKS,
         "products collectives moe barrier", "ranks that share the problem (default 2)"},
        {"--m|--M", "M", OPTIONS_INT, &p->m, NULL, 1, extent, "products gemm",
         "rows of A and D, over all ranks; M N K may also be three plain numbers"},
        {"--n|--N", "N", OPTIONS_INT, &p->n, NULL, 1, extent, "products gemm",
         "columns of B and D, over all ranks"},
        {"--k|--K", "K", OPTIONS_INT, &p->k, NULL, 1, extent, "products gemm",
         "columns of A, rows of B, over all ranks"},
        {"--l|--L", "L", OPTIONS_INT, &p->l, NULL, 1, extent, "products",
         "batch: that many products (default 1)"},
        {"--dtype", "TYPE", OPTIONS_CALL, o, read_dtype, 0, 0, "products gemm collectives moe",
         "float32, bfloat16, float16, int8 (f32 bf16 f16 i8; default f32), fp8_e4m3, fp8_e5m2"},
        {"--wire", "TYPE", OPTIONS_CALL, o, read_wire, 0, 0, "gemm_rs gemm_ar moe",
         "of the partial sums that travel: f32 (default), bf16, f16; moe: fp8, tokens travel so, with "
         "scales"},
        {"--schedule|--impl", "NAME", OPTIONS_CALL, o, read_schedule, 0, 0, "products collectives moe",
         "how: auto (default), all (compare every one), or a name from the list below"},
        {"-c|--collective", "NAME", OPTIONS_CALL, o, read_collective, 0, 0, NULL,
         "the operation by its collective: all_reduce, all_scatter, or all_gather (their unfused reference)"},
        {"--gather", "a|b", OPTIONS_CALL, o, read_gather, 0, 0, "ag_gemm",
         "the operand that travels (default a); along k: a_k, b_k (plan and sim)"},
        {"--scatter", "rows|cols", OPTIONS_CALL, o, read_scatter, 0, 0, "gemm_rs",
         "what a rank keeps of D (default rows)"},
        {"--alpha", "X", OPTIONS_CALL, &p->alpha, read_alpha, 0, 0, "products",
         "D = act(alpha A B + beta C + bias) (1)"},
        {"--beta", "X", OPTIONS_CALL, &p->beta, read_alpha, 0, 0, "products", "(0: C is never read)"},
        {"--bias", NULL, OPTIONS_CALL, &p->bias, read_on, 0, 0, "products", "add a bias per column"},
        {"--act", "NAME", OPTIONS_CALL, o, read_act, 0, 0, "products",
         "none, relu, gelu, silu; relu_gated and so on (plan and sim)"},
        {"--transa", NULL, OPTIONS_CALL, &p->transa, read_on, 0, 0, "products", "A is stored transposed"},
        {"--transb", NULL, OPTIONS_CALL, &p->transb, read_on, 0, 0, "products gemm",
         "B is stored transposed (weights [N, K])"},
        {"--pack", "WHEN", OPTIONS_CALL, o, read_packed, 0, 0, "products",
         "run: each run packs B (default); before: weights packed once (default of --set decode); never"},
        {"--BLOCK_SIZE_M", "M", OPTIONS_INT, &p->tuning.tile_m, NULL, 0, extent, "products",
         "tile of the schedule (0: chosen)"},
        {"--BLOCK_SIZE_N", "N", OPTIONS_INT, &p->tuning.tile_n, NULL, 0, extent, "products", "its columns"},
        {"--BLOCK_SIZE_K", "K", OPTIONS_INT, &p->tuning.tile_k, NULL, 0, extent, "products", "its depth"},
        {"--granule-m", "G", OPTIONS_INT, &p->granule_m, NULL, 1, extent, "products",
         "ranks have multiples of so many rows (default 1)"},
        {"--granule-n", "G", OPTIONS_INT, &p->granule_n, NULL, 1, extent, "products",
         "of so many columns: heads that stay whole"},
        {"--granule-k", "G", OPTIONS_INT, &p->granule_k, NULL, 1, extent, "products", "of so much of k"},
        {"--staged", NULL, OPTIONS_CALL, &p->tuning.staged, read_on, 0, 0, "products collectives",
         "ranks touch none of each other's operands, as where those are not in symmetric memory"},
        {"--bytes", "SIZES", OPTIONS_CALL, o, read_bytes, 0, 0, "collectives",
         "collectives: bytes of a buffer, one size (64K) or a range that doubles (64:16M, the default)"},
        {"--op|--reduction", "NAME", OPTIONS_CALL, o, read_reduction, 0, 0, "all_reduce reduce_scatter",
         "collectives that reduce: sum, min, max, product, average"},
        {"--threads", "T", OPTIONS_INT, &o->threads, NULL, 1, 4096, "products gemm collectives moe",
         "compute threads of a rank (default: the cores it may count on, shared ones divided)"},
        {"--trace", "FILE", OPTIONS_TEXT, &o->trace, NULL, 0, 0, "products collectives",
         "Chrome trace (Perfetto) of one run"},
        {"--svg", "FILE", OPTIONS_TEXT, &o->svg, NULL, 0, 0, "products collectives",
         "picture of one run (of the largest size)"},
        {"--json", NULL, OPTIONS_SWITCH, &o->json, NULL, 0, 0, NULL, "one JSON object per row, nothing else"},
        {"-h|--help", NULL, OPTIONS_SWITCH, &o->help, NULL, 0, 0, NULL, "this text"},
    };
    /* What only some commands do. */
    const options_flag sets[] = {
        {"--set", "NAME", OPTIONS_TEXT, &o->set, NULL, 0, 0, "products moe",
         "many shapes: llama3, llama3-down, contest, cutlass, decode, overlap (chosen by measuring)"},
        {"--scale", "X", OPTIONS_REAL, &o->scale, NULL, 1, 4096,
         strcmp(command, "sim") ? "products moe" : "products",
         strcmp(command, "sim") ? "divide the set's M, N and K (default 8; of decode 1), for moe H and T (1)"
                                : "divide the set's M, N and K (default 1)"},
    };
    const options_flag page[] = {
        {"--html", "FILE", OPTIONS_TEXT, &o->html, NULL, 0, 0, NULL,
         "a page that draws the rows, with the run of each product (weft report merges several)"},
    };
    const options_flag measuring[] = {
        {"--iterations|--iters", "I", OPTIONS_INT, &o->iterations, NULL, 1, 1e9, NULL,
         "measured runs (default 100, fewer when a run is long)"},
        {"--warmup-iterations|--warmup", "I", OPTIONS_INT, &o->warmup, NULL, 0, 1e9, NULL,
         "runs before measuring (default 10, fewer when a run is long)"},
        {"--eps", "X", OPTIONS_REAL, &o->eps, NULL, 0, 1e30, "products",
         "allowed error; 0: the derived bound (default)"},
        {"--seed", "S", OPTIONS_CALL, &o->seed, read_seed, 0, 0, "products gemm collectives moe",
         "of the random data (default: the clock)"},
    };
    const options_flag backend[] = {
        {"--backend", "NAME", OPTIONS_CALL, &o->cuda, read_backend, 0, 0, "products collectives moe",
         "cpu (default) or cuda"},
    };
    int count = 0;

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (is_taken(command, &table[i]))
            flags[count++] = table[i];
    if (strcmp(command, "bench") == 0 || strcmp(command, "sim") == 0) {
        count = append(flags, count, sets, sizeof sets);
        count = append(flags, count, page, sizeof page);
    }
    if (strcmp(command, "bench") == 0)
        count = append(flags, count, measuring, sizeof measuring);
    if (strcmp(command, "bench") == 0 || strcmp(command, "tune") == 0)
        count = append(flags, count, backend, sizeof backend);
    return count;
}

static void print_flag(FILE *file, const options_flag *flag)
{
    char head[96];
    size_t length = 0;

    for (const char *c = flag->names; *c && length + 3 < sizeof head; c++) {
        if (*c == '|')
            head[length++] = ',';
        head[length++] = *c == '|' ? ' ' : *c;
    }
    head[length] = 0;
    if (flag->value)
        snprintf(head + length, sizeof head - length, " %s", flag->value);
    if (strlen(head) > 34)
        fprintf(file, "  %s\n  %34s  %s\n", head, "", flag->help);
    else
        fprintf(file, "  %-34s  %s\n", head, flag->help);
}

void options_print_help(FILE *file, const char *command, const options_flag *flags)
{
    weft_options unused;
    options_flag table[OPTIONS_MOST_FLAGS];
    int count = options_problem_flags(&unused, command, table);

    for (int i = 0; i < count; i++)
        if (table[i].target != &unused.help)
            print_flag(file, &table[i]);
    for (; flags && flags->names; flags++)
        print_flag(file, flags);
    for (int i = 0; i < count; i++)
        if (table[i].target == &unused.help)
            print_flag(file, &table[i]);
    fputs("\nschedules (auto compares them on this machine's description)\n", file);
    for (int op = WEFT_OP_AG_GEMM; op <= WEFT_OP_BROADCAST; op++) {
        fprintf(file, "  %-16s", weft_op_name((weft_op)op));
        for (int layout = 0; layout < 2; layout++) {
            int listed;
            weft_layout second = op == WEFT_OP_AG_GEMM   ? WEFT_LAYOUT_GATHER_B
                                 : op == WEFT_OP_GEMM_RS ? WEFT_LAYOUT_SCATTER_COLS
                                                         : WEFT_LAYOUT_DEFAULT;
            if (layout && second == WEFT_LAYOUT_DEFAULT)
                break;
            const weft_schedule *list =
                weft_schedule_list((weft_op)op, layout ? second : WEFT_LAYOUT_DEFAULT, &listed);
            for (int i = 0; i < (layout ? 1 : listed); i++)
                fprintf(file, " %s", weft_schedule_name((weft_op)op, list[i]));
        }
        fputc('\n', file);
    }
}
