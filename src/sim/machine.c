/* Reading machine descriptions; see machine.h. Keys are a table: what is written there is what is read. */
#include "sim/machine.h"
#include "sim/builtin.h"
#include "core/cpu.h"
#include "core/dtype.h"
#include "core/env.h"
#include "core/hash.h"
#include "core/round.h"
#include "gemm/cost.h"
#include "plan/crews.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_WORDS = 7 }; /* one more than any key takes */

typedef enum key_form {
    FORM_TEXT,
    FORM_COUNT,
    FORM_SIZE,
    FORM_DTYPE_SIZE,
    FORM_REAL,
    FORM_DTYPE_REAL,
    FORM_CURVE,
    FORM_DTYPE_CURVE,
    FORM_DTYPE_FEW
} key_form;

typedef struct key_row {
    const char *key;
    key_form form;
    size_t offset; /* in weft_machine */
    size_t bytes;  /* of a text */
} key_row;

#define AT(field) offsetof(weft_machine, field)

static const key_row keys[] = {
    {"name", FORM_TEXT, AT(name), sizeof(((weft_machine *)0)->name)},
    {"nodes", FORM_COUNT, AT(nodes), 0},
    {"ranks_per_node", FORM_COUNT, AT(ranks_per_node), 0},
    {"units", FORM_COUNT, AT(units), 0},
    {"gflops", FORM_DTYPE_REAL, AT(gflops), 0},
    {"step_m", FORM_SIZE, AT(step_m), 0},
    {"step_n", FORM_SIZE, AT(step_n), 0},
    {"step_k", FORM_SIZE, AT(step_k), 0},
    {"type_step_m", FORM_DTYPE_SIZE, AT(type_step_m), 0},
    {"type_step_n", FORM_DTYPE_SIZE, AT(type_step_n), 0},
    {"type_step_k", FORM_DTYPE_SIZE, AT(type_step_k), 0},
    {"tile_m", FORM_SIZE, AT(tile_m), 0},
    {"tile_n", FORM_SIZE, AT(tile_n), 0},
    {"tile_k", FORM_SIZE, AT(tile_k), 0},
    {"memory_gbs", FORM_REAL, AT(memory_gbs), 0},
    {"copy_engines", FORM_COUNT, AT(copy_engines), 0},
    {"link_gbs", FORM_REAL, AT(link_gbs), 0},
    {"link_us", FORM_REAL, AT(link_us), 0},
    {"network_gbs", FORM_REAL, AT(network_gbs), 0},
    {"network_us", FORM_REAL, AT(network_us), 0},
    {"launch_unfused_us", FORM_REAL, AT(launch_unfused_us), 0},
    {"launch_fused_us", FORM_REAL, AT(launch_fused_us), 0},
    {"launch_graph_us", FORM_REAL, AT(launch_graph_us), 0},
    {"enter_us", FORM_REAL, AT(enter_us), 0},
    {"launch_library_us", FORM_REAL, AT(launch_library_us), 0},
    {"library_gbs", FORM_REAL, AT(library_gbs), 0},
    {"multicast_gbs", FORM_REAL, AT(multicast_gbs), 0},
    {"multicast_us", FORM_REAL, AT(multicast_us), 0},
    {"gemm_us", FORM_REAL, AT(gemm_us), 0},
    {"copy_us", FORM_REAL, AT(copy_us), 0},
    {"reduce_us", FORM_REAL, AT(reduce_us), 0},
    {"flag_us", FORM_REAL, AT(flag_us), 0},
    {"switch_us", FORM_REAL, AT(switch_us), 0},
    {"pack_a_gbs", FORM_DTYPE_REAL, AT(pack_a_gbs), 0},
    {"pack_b_gbs", FORM_DTYPE_REAL, AT(pack_b_gbs), 0},
    {"edge_ns", FORM_DTYPE_REAL, AT(edge_ns), 0},
    {"edge_place_ns", FORM_DTYPE_REAL, AT(edge_place_ns), 0},
    {"acc_gbs", FORM_DTYPE_REAL, AT(acc_gbs), 0},
    {"twice_gbs", FORM_DTYPE_REAL, AT(twice_gbs), 0},
    {"stream_gbs", FORM_DTYPE_REAL, AT(stream_gbs), 0},
    {"finish_ns", FORM_DTYPE_REAL, AT(finish_ns), 0},
    {"few", FORM_DTYPE_FEW, AT(few), 0},
    {"few_results", FORM_DTYPE_FEW, AT(few_results), 0},
    {"store", FORM_CURVE, AT(store), 0},
    {"gflops_long", FORM_DTYPE_REAL, AT(gflops_long), 0},
    {"epilogue_ns", FORM_DTYPE_REAL, AT(epilogue_ns), 0},
    {"round_ns", FORM_DTYPE_REAL, AT(round_ns), 0},
    {"row_ns", FORM_DTYPE_REAL, AT(row_ns), 0},
    {"cache_bytes", FORM_REAL, AT(cache_bytes), 0},
    {"shared_gbs", FORM_DTYPE_REAL, AT(shared_gbs), 0},
    {"parts_gbs", FORM_REAL, AT(parts_gbs), 0},
    {"copy_own", FORM_CURVE, AT(copy_own), 0},
    {"copy_pull", FORM_CURVE, AT(copy_pull), 0},
    {"copy_push", FORM_CURVE, AT(copy_push), 0},
    {"reduce", FORM_DTYPE_CURVE, AT(reduce), 0},
    {"reduce_shared", FORM_CURVE, AT(reduce_shared), 0},
    {"reduce_push", FORM_CURVE, AT(reduce_push), 0},
};

/* What older calibrations wrote, and is measured in another way now: read past, and said. */
static const char *const retired[] = {"gflops_few", "place_gbs", "load_b_gbs"};

static weft_status find_builtin(const char *name, const char **text, weft_error_text *error);
static weft_status read_text(const char *text, const char *where, weft_machine *machine,
                             weft_error_text *error);

typedef struct reader {
    const char *where;
    int line;
    weft_machine *machine;
    weft_error_text *error;
} reader;

static weft_status complain(const reader *in, const char *key, const char *expected)
{
    return weft_error_set(in->error, WEFT_ERR_ARGUMENT, "%s:%d: %s needs %s", in->where, in->line, key,
                          expected);
}

/* Zero, or within what a machine can have: products and quotients of such numbers are finite. */
static bool parse_real(const char *word, double *value)
{
    char *end;

    if (!word)
        return false;
    *value = strtod(word, &end);
    return end != word && !*end && (*value == 0 || (*value >= 1e-12 && *value <= 1e15));
}

static weft_status read_curve(const reader *in, const char *key, char **words, weft_curve *curve)
{
    double bytes, alone, all;

    if (!parse_real(words[0], &bytes) || !parse_real(words[1], &alone) || !parse_real(words[2], &all) ||
        words[3] || bytes <= 0 || alone <= 0 || all <= 0)
        return complain(in, key,
                        "three positive numbers: bytes, GB/s of one core alone, GB/s of each when all work");
    if (curve->count == WEFT_CURVE_POINTS)
        return complain(in, key, "at most 16 points");
    if (curve->count && bytes <= curve->bytes[curve->count - 1])
        return complain(in, key, "its points in ascending order of bytes");
    curve->bytes[curve->count] = bytes;
    curve->alone[curve->count] = alone;
    curve->all[curve->count++] = all;
    return WEFT_OK;
}

static weft_status read_few(const reader *in, const char *key, char **words, weft_few_rows *few)
{
    double rows, bytes, plain, packed;
    int last = few->count - 1;

    if (!parse_real(words[0], &rows) || !parse_real(words[1], &bytes) || !parse_real(words[2], &plain) ||
        !parse_real(words[3], &packed) || words[4] || rows < 1 || plain <= 0 || packed <= 0)
        return complain(
            in, key,
            "four numbers after its element type: rows, bytes of B, ns of one that is not packed, "
            "ns of one that is");
    if (few->count == WEFT_FEW_POINTS)
        return complain(in, key, "at most 48 points");
    if (last >= 0 && rows == few->rows[last] ? bytes <= few->bytes[last]
                                             : bytes > 0 || (last >= 0 && rows < few->rows[last]))
        return complain(in, key, "its points in ascending order of rows, then of bytes from 0 on");
    few->rows[few->count] = rows;
    few->bytes[few->count] = bytes;
    few->plain_ns[few->count] = plain;
    few->packed_ns[few->count++] = packed;
    return WEFT_OK;
}

/* Of what is counted. */
static bool parse_whole(const char *word, int64_t *value)
{
    double real;

    if (!parse_real(word, &real) || real != floor(real) || real > WEFT_MACHINE_MOST)
        return false;
    *value = (int64_t)real;
    return true;
}

static weft_status read_value(const reader *in, const key_row *row, char **words)
{
    char *field = (char *)in->machine + row->offset;
    weft_dtype dtype;
    int64_t whole;
    double value;

    switch (row->form) {
    case FORM_TEXT:
        if (!words[0] || words[1])
            return complain(in, row->key, "a word");
        snprintf(field, row->bytes, "%s", words[0]);
        return WEFT_OK;
    case FORM_COUNT:
    case FORM_SIZE:
        if (!parse_whole(words[0], &whole) || words[1])
            return complain(in, row->key, "a whole number, 0 to 65536");
        if (row->form == FORM_COUNT)
            memcpy(field, &(int){(int)whole}, sizeof(int));
        else
            memcpy(field, &whole, sizeof(whole));
        return WEFT_OK;
    case FORM_DTYPE_SIZE:
        if (!words[0] || weft_dtype_parse(words[0], &dtype) || !parse_whole(words[1], &whole) || words[2])
            return complain(in, row->key, "an element type and a whole number, 0 to 65536");
        memcpy(field + (size_t)dtype * sizeof(whole), &whole, sizeof(whole));
        return WEFT_OK;
    case FORM_REAL:
        if (!parse_real(words[0], &value) || words[1])
            return complain(in, row->key, "a number, 0 or from 1e-12 to 1e15");
        memcpy(field, &value, sizeof(value));
        return WEFT_OK;
    case FORM_DTYPE_REAL:
        if (!words[0] || weft_dtype_parse(words[0], &dtype) || !parse_real(words[1], &value) || words[2])
            return complain(in, row->key, "an element type and a number, 0 or from 1e-12 to 1e15");
        memcpy(field + (size_t)dtype * sizeof(double), &value, sizeof(value));
        return WEFT_OK;
    case FORM_CURVE:
        return read_curve(in, row->key, words, (weft_curve *)(void *)field);
    case FORM_DTYPE_CURVE:
        if (!words[0] || weft_dtype_parse(words[0], &dtype))
            return complain(in, row->key, "the name of an element type before its numbers");
        return read_curve(in, row->key, words + 1, (weft_curve *)(void *)field + dtype);
    case FORM_DTYPE_FEW:
        if (!words[0] || weft_dtype_parse(words[0], &dtype))
            return complain(in, row->key, "the name of an element type before its numbers");
        return read_few(in, row->key, words + 1, (weft_few_rows *)(void *)field + dtype);
    }
    return complain(in, row->key, "a value");
}

/* The keys whose values are words with a meaning. */
static weft_status read_choice(const reader *in, char **words, bool *known)
{
    weft_machine *machine = in->machine;
    const char *value = words[1] && !words[2] ? words[1] : "";

    *known = true;
    if (strcmp(words[0], "kind") == 0) {
        if (strcmp(value, "gpu") != 0 && strcmp(value, "cpu") != 0)
            return complain(in, "kind", "gpu or cpu");
        machine->kind = strcmp(value, "gpu") == 0 ? WEFT_MACHINE_GPU : WEFT_MACHINE_CPU;
    } else if (strcmp(words[0], "link") == 0) {
        static const char *const names[] = {"switch", "mesh", "ring"};

        for (int i = 0; i < 3; i++)
            if (strcmp(value, names[i]) == 0) {
                machine->link = (weft_link_kind)i;
                return WEFT_OK;
            }
        return complain(in, "link", "switch, mesh or ring");
    } else if (strcmp(words[0], "like") == 0) {
        weft_error_text why;
        const char *text;
        weft_status status = find_builtin(value, &text, &why);

        if (!status)
            status = read_text(text, value, machine, &why);

        return status ? weft_error_set(in->error, status, "%s:%d: %s", in->where, in->line, why.text)
                      : WEFT_OK;
    } else if (strcmp(words[0], "multicast") == 0 || strcmp(words[0], "crews") == 0) {
        if (strcmp(value, "yes") != 0 && strcmp(value, "no") != 0)
            return complain(in, words[0], "yes or no");
        *(words[0][0] == 'm' ? &machine->multicast : &machine->crews) = strcmp(value, "yes") == 0;
    } else {
        *known = false;
    }
    return WEFT_OK;
}

static weft_status read_line(const reader *in, char *line)
{
    char *words[MAX_WORDS + 1] = {0}, *rest = NULL, *comment = strchr(line, '#');
    weft_status status;
    bool known;

    if (comment)
        *comment = 0;
    for (int i = 0; i < MAX_WORDS; i++) {
        words[i] = strtok_r(i ? NULL : line, " \t\r", &rest);
        if (!words[i])
            break;
        if (strcmp(words[0], "about") == 0 || strcmp(words[0], "cpu") == 0) {
            bool cpu = words[0][0] == 'c';

            snprintf(cpu ? in->machine->cpu : in->machine->about,
                     cpu ? sizeof(in->machine->cpu) : sizeof(in->machine->about), "%s", rest ? rest : "");
            return WEFT_OK;
        }
    }
    if (!words[0])
        return WEFT_OK;
    status = read_choice(in, words, &known);
    if (status || known)
        return status;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(words[0], keys[i].key) == 0)
            return read_value(in, &keys[i], words + 1);
    for (size_t i = 0; i < sizeof(retired) / sizeof(retired[0]); i++)
        if (strcmp(words[0], retired[i]) == 0) {
            in->machine->outdated = true;
            return WEFT_OK;
        }
    return weft_error_set(in->error, WEFT_ERR_ARGUMENT, "%s:%d: unknown key '%s'", in->where, in->line,
                          words[0]);
}

static weft_status check_complete(const weft_machine *machine, const char *where, weft_error_text *error)
{
    const char *missing = NULL;
    bool gpu = machine->kind == WEFT_MACHINE_GPU;
    double rate = 0;

    for (int i = 0; i < WEFT_MACHINE_DTYPES; i++)
        rate += machine->gflops[i];
    if (machine->units < 1 || (machine->crews && machine->units < WEFT_CREW_SMS))
        missing = machine->crews ? "units (two and more for crews)" : "units";
    else if (rate <= 0)
        missing = "gflops";
    else if (machine->memory_gbs <= 0)
        missing = "memory_gbs";
    else if (machine->step_m < 1 || machine->step_n < 1 || machine->step_k < 1)
        missing = "a step_m, step_n or step_k of at least 1";
    else if (gpu && machine->ranks_per_node < 1)
        missing = "ranks_per_node";
    else if (gpu && machine->ranks_per_node > 1 && machine->link_gbs <= 0)
        missing = "link_gbs";
    else if (gpu && machine->copy_engines < 1)
        missing = "copy_engines";
    else if (machine->nodes > 1 && (machine->network_gbs <= 0 || machine->ranks_per_node < 1))
        missing = machine->network_gbs <= 0 ? "network_gbs" : "ranks_per_node";
    else if (!gpu && !machine->copy_own.count)
        missing = "copy_own";
    else if (!gpu && !machine->copy_pull.count)
        missing = "copy_pull";
    else if (!gpu && !machine->copy_push.count)
        missing = "copy_push";
    else if (!gpu && !machine->reduce[WEFT_F32].count)
        missing = "reduce float32";
    else if (!gpu && !machine->reduce_shared.count)
        missing = "reduce_shared";
    for (int i = 0; !missing && !gpu && i < WEFT_MACHINE_DTYPES; i++)
        if (machine->gflops[i] > 0 &&
            (machine->pack_a_gbs[i] <= 0 || machine->pack_b_gbs[i] <= 0 || machine->stream_gbs[i] <= 0))
            missing = "pack_a_gbs, pack_b_gbs or stream_gbs of a type that has gflops";
    if (missing)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "%s: the description lacks %s", where, missing);
    return WEFT_OK;
}

/* A description without figures for fp8: CPUs multiply it as bfloat16. A GPU without has no such products. */
static void complete_fp8(weft_machine *m)
{
    if (m->kind == WEFT_MACHINE_GPU)
        return;
    for (weft_dtype dtype = WEFT_FP8_E4M3; dtype <= WEFT_FP8_E5M2; dtype++) {
        double *rates[] = {m->gflops,     m->pack_a_gbs, m->pack_b_gbs,    m->acc_gbs,     m->twice_gbs,
                           m->stream_gbs, m->finish_ns,  m->gflops_long,   m->epilogue_ns, m->round_ns,
                           m->shared_gbs, m->edge_ns,    m->edge_place_ns, m->row_ns};

        for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++)
            if (rates[i][dtype] <= 0)
                rates[i][dtype] = rates[i][WEFT_BF16];
        if (!m->few[dtype].count)
            m->few[dtype] = m->few[WEFT_BF16];
        if (!m->few_results[dtype].count)
            m->few_results[dtype] = m->few_results[WEFT_BF16];
    }
}

/* What the text says, on top of what `like` names; nothing of it is completed or judged yet. */
static weft_status read_text(const char *text, const char *where, weft_machine *machine,
                             weft_error_text *error)
{
    reader in = {where, 0, machine, error};
    char *copy = strdup(text), *rest = copy, *line;
    weft_status status = WEFT_OK;

    memset(machine, 0, sizeof(*machine));
    machine->nodes = 1;
    machine->step_m = machine->step_n = machine->step_k = 1;
    if (!copy)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to read %s", where);
    while (!status && (line = strsep(&rest, "\n"))) {
        in.line++;
        status = read_line(&in, line);
    }
    free(copy);
    return status;
}

static weft_status parse(const char *text, const char *where, weft_machine *read, weft_error_text *error)
{
    weft_status status = read_text(text, where, read, error);

    if (status)
        return status;
    complete_fp8(read);
    if (read->outdated) {
        size_t used = strlen(read->about);

        snprintf(read->about + used, sizeof(read->about) - used,
                 ", measured by an older weft: few rows are a guess; weft calibrate measures them");
    }
    if (!read->name[0])
        snprintf(read->name, sizeof(read->name), "unnamed");
    read->id = weft_hash(WEFT_HASH_START, text, strlen(text));
    return check_complete(read, where, error);
}

weft_status weft_machine_parse(const char *text, const char *where, weft_machine *machine,
                               weft_error_text *error)
{
    weft_machine *read = malloc(sizeof(*read)); /* large for a stack */
    weft_status status;

    if (!read)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to read %s", where);
    status = parse(text, where, read, error);
    if (!status)
        *machine = *read;
    free(read);
    return status;
}

/* ---- finding one ---------------------------------------------------------------------------------- */

const char *weft_machine_builtin_name(int index)
{
    return index >= 0 && index < weft_machine_builtin_count ? weft_machine_builtins[index].name : NULL;
}

static weft_status read_path(const char *path, weft_machine *machine, weft_error_text *error)
{
    enum { LIMIT = 256 * 1024 };
    FILE *file = fopen(path, "r");
    weft_status status;
    size_t bytes;
    char *text;

    if (!file)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read the machine description %s: %s", path,
                              strerror(errno));
    text = malloc(LIMIT);
    if (!text) {
        fclose(file);
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory to read %s", path);
    }
    bytes = fread(text, 1, LIMIT - 1, file);
    text[bytes] = 0;
    status = ferror(file)
                 ? weft_error_set(error, WEFT_ERR_ARGUMENT, "cannot read the machine description %s: %s",
                                  path, strerror(errno))
                 : weft_machine_parse(text, path, machine, error);
    fclose(file);
    free(text);
    return status;
}

/* The file that was read last is read again when it has changed: ranks that meet for every plan ask for it
 * each time. */
static weft_status load_path(const char *path, weft_machine *machine, weft_error_text *error)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        char path[1024];
        struct stat as;
        weft_machine machine;
    } last;
    struct stat now;
    weft_status status = WEFT_OK;

    if (strlen(path) >= sizeof(last.path) || stat(path, &now) != 0)
        return read_path(path, machine, error);
    pthread_mutex_lock(&lock);
    if (strcmp(path, last.path) != 0 || now.st_ino != last.as.st_ino || now.st_dev != last.as.st_dev ||
        now.st_size != last.as.st_size || now.st_mtim.tv_sec != last.as.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != last.as.st_mtim.tv_nsec || now.st_ctim.tv_sec != last.as.st_ctim.tv_sec ||
        now.st_ctim.tv_nsec != last.as.st_ctim.tv_nsec) {
        last.path[0] = 0;
        status = read_path(path, &last.machine, error);
        if (status == WEFT_OK) {
            snprintf(last.path, sizeof(last.path), "%s", path);
            last.as = now;
        }
    }
    if (status == WEFT_OK)
        *machine = last.machine;
    pthread_mutex_unlock(&lock);
    return status;
}

static weft_status user_file(const char *name, char *path, size_t bytes, weft_error_text *error)
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int length;

    if (base && *base)
        length = snprintf(path, bytes, "%s/weft/%s", base, name);
    else if (home && *home)
        length = snprintf(path, bytes, "%s/.config/weft/%s", home, name);
    else
        return weft_error_set(
            error, WEFT_ERR_ARGUMENT,
            "neither XDG_CONFIG_HOME nor HOME is set: there is no place for a machine description");
    if (length < 0 || (size_t)length >= bytes)
        return weft_error_set(error, WEFT_ERR_ARGUMENT, "the path of the machine description is too long");
    return WEFT_OK;
}

weft_status weft_machine_user_path(char *path, size_t bytes, weft_error_text *error)
{
    return user_file("machine", path, bytes, error);
}

weft_status weft_machine_gpu_path(char *path, size_t bytes, weft_error_text *error)
{
    return user_file("gpu.machine", path, bytes, error);
}

static weft_status find_builtin(const char *name, const char **text, weft_error_text *error)
{
    char known[256] = "";

    for (int i = 0; i < weft_machine_builtin_count; i++) {
        size_t used = strlen(known);

        if (strcmp(weft_machine_builtins[i].name, name) == 0) {
            *text = weft_machine_builtins[i].text;
            return WEFT_OK;
        }
        snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", weft_machine_builtins[i].name);
    }
    return weft_error_set(error, WEFT_ERR_ARGUMENT,
                          "no machine is called '%s'; there are %s, 'this', 'this_gpu', or a path to a file",
                          name, known);
}

static weft_status load_builtin(const char *name, weft_machine *machine, weft_error_text *error)
{
    const char *text;
    weft_status status = find_builtin(name, &text, error);

    return status ? status : weft_machine_parse(text, name, machine, error);
}

static weft_status find_this(weft_machine *machine, weft_error_text *error)
{
    const char *chosen = weft_env_word(WEFT_ENV_MACHINE);
    weft_status status;
    char path[1024], measured[sizeof(machine->cpu)] = "";
    FILE *probe;

    if (*chosen && strcmp(chosen, "this") != 0)
        return weft_machine_find(chosen, machine, error);
    if (!weft_machine_user_path(path, sizeof(path), error) && (probe = fopen(path, "r"))) {
        fclose(probe);
        status = load_path(path, machine, error);
        if (status || !machine->cpu[0] || strcmp(machine->cpu, weft_cpu_name()) == 0)
            return status;
        snprintf(measured, sizeof(measured), "%s", machine->cpu);
    }
    status = load_builtin("cpu", machine, error);
    if (!status && *measured)
        snprintf(machine->about, sizeof(machine->about),
                 "a CPU that has not been calibrated (the calibration is of %s)", measured);
    if (!status) {
        machine->units = weft_cpu_count();
        machine->id += (uint64_t)machine->units;
    }
    return status;
}

static weft_status find_this_gpu(weft_machine *machine, weft_error_text *error)
{
    char path[1024];
    weft_status status = weft_machine_gpu_path(path, sizeof(path), error);

    if (status)
        return status;
    if (access(path, F_OK) != 0)
        return weft_error_set(error, WEFT_ERR_ARGUMENT,
                              "no GPU was calibrated here: weft calibrate --backend cuda writes %s", path);
    return load_path(path, machine, error);
}

weft_status weft_machine_find(const char *name, weft_machine *machine, weft_error_text *error)
{
    size_t length;

    if (!name || strcmp(name, "this") == 0)
        return find_this(machine, error);
    if (strcmp(name, "this_gpu") == 0)
        return find_this_gpu(machine, error);
    length = strlen(name);
    if (strchr(name, '/') || (length > 8 && strcmp(name + length - 8, ".machine") == 0))
        return load_path(name, machine, error);
    return load_builtin(name, machine, error);
}

double weft_curve_rate(const weft_curve *curve, double bytes, bool all)
{
    const double *rate = all ? curve->all : curve->alone;
    int last = curve->count - 1, i = 0;
    double share;

    if (bytes <= curve->bytes[0])
        return rate[0];
    if (bytes >= curve->bytes[last])
        return rate[last];
    while (curve->bytes[i + 1] < bytes)
        i++;
    share = log(bytes / curve->bytes[i]) / log(curve->bytes[i + 1] / curve->bytes[i]);
    return rate[i] + share * (rate[i + 1] - rate[i]);
}

/* Of points [first, end), by the logarithm of bytes. */
static double by_bytes(const weft_few_rows *few, int first, int end, const double *ns, double bytes)
{
    int i = first;

    if (bytes <= few->bytes[i])
        return ns[i];
    while (i + 1 < end && few->bytes[i + 1] < bytes)
        i++;
    if (i + 1 == end)
        return ns[i];
    return ns[i] + (ns[i + 1] - ns[i]) * log(bytes / few->bytes[i]) / log(few->bytes[i + 1] / few->bytes[i]);
}

double weft_few_rows_ns(const weft_few_rows *few, int64_t rows, int64_t mr, double bytes, bool packed)
{
    const double *ns = packed ? few->packed_ns : few->plain_ns;
    double wanted = rows > WEFT_GEMM_PLACE_ROWS ? (double)weft_round_up(rows, mr) : (double)rows;
    double had_rows = 0, had = 0, now_rows = 0, now = 0;

    for (int first = 0, end; first < few->count && now_rows < wanted; first = end) {
        for (end = first + 1; end < few->count && few->rows[end] == few->rows[first];)
            end++;
        had_rows = now_rows;
        had = now;
        now_rows = few->rows[first];
        now = bytes > 0 && end > first + 1 ? by_bytes(few, first + 1, end, ns, bytes) : ns[first];
    }
    /* Kernels for up to so many rows take as long for fewer; micro-tiles come one after another. */
    return rows <= WEFT_GEMM_PLACE_ROWS ? now
                                        : had + (now - had) * (wanted - had_rows) / (now_rows - had_rows);
}
