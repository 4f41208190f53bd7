/*
 * Plans in JSON: an object for each rank, one after another. Each is parsed into a tree and written as the
 * text that stands for it, so that there is one reader of plans.
 */
#include "plan/read.h"
#include "plan/fields.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 16 };

typedef enum node_kind { NODE_OBJECT, NODE_LIST, NODE_STRING, NODE_OTHER } node_kind;

typedef struct node {
    node_kind kind;
    char *key, *text; /* text: of a string, or of a number, true, false, null */
    struct node *first, *next;
} node;

typedef struct parser {
    const char *at, *end, *begin;
    const char *where;
    weft_error_text *error;
    weft_status status;
} parser;

/* ---- the tree ------------------------------------------------------------------------------------ */

static void free_node(node *n)
{
    while (n) {
        node *next = n->next;

        free_node(n->first);
        free(n->key);
        free(n->text);
        free(n);
        n = next;
    }
}

static void *fail(parser *p, const char *what)
{
    long line = 1;

    for (const char *c = p->begin; c < p->at; c++)
        line += *c == '\n';
    if (p->status == WEFT_OK)
        p->status = weft_error_set(p->error, WEFT_ERR_ARGUMENT, "%s, line %ld: %s", p->where, line, what);
    return NULL;
}

static void skip(parser *p)
{
    while (p->at < p->end && isspace((unsigned char)*p->at))
        p->at++;
}

static bool take(parser *p, char c)
{
    skip(p);
    if (p->at < p->end && *p->at == c) {
        p->at++;
        return true;
    }
    return false;
}

static char *copy(parser *p, const char *from, size_t length)
{
    char *text = malloc(length + 1);

    if (!text) {
        p->status = weft_error_set(p->error, WEFT_ERR_MEMORY, "no memory for the plan in %s", p->where);
        return NULL;
    }
    memcpy(text, from, length);
    text[length] = 0;
    return text;
}

/* Words of plans need no escapes. */
static char *string(parser *p)
{
    const char *from;

    if (!take(p, '"'))
        return fail(p, "a string should begin here");
    from = p->at;
    while (p->at < p->end && *p->at != '"' && *p->at != '\\' && (unsigned char)*p->at >= ' ')
        p->at++;
    if (p->at == p->end || *p->at != '"')
        return fail(p, "a string without an end, or with what no word of a plan has");
    p->at++;
    return copy(p, from, (size_t)(p->at - 1 - from));
}

static node *value(parser *p, int depth);

static void members(parser *p, node *into, char closing, int depth)
{
    node **last = &into->first;

    if (take(p, closing))
        return;
    do {
        char *key = closing == '}' ? string(p) : NULL;
        node *n;

        if (p->status == WEFT_OK && closing == '}' && !take(p, ':'))
            fail(p, "there should be a ':' after the name");
        n = p->status == WEFT_OK ? value(p, depth + 1) : NULL;
        if (!n) {
            free(key);
            return;
        }
        n->key = key;
        *last = n;
        last = &n->next;
    } while (take(p, ','));
    if (!take(p, closing))
        fail(p, closing == '}' ? "there should be a '}' or ','" : "there should be a ']' or ','");
}

static node *value(parser *p, int depth)
{
    node *n;

    skip(p);
    if (depth > MOST_DEPTH)
        return fail(p, "nested deeper than any plan");
    if (p->at == p->end)
        return fail(p, "the file ends too early");
    n = calloc(1, sizeof(*n));
    if (!n) {
        p->status = weft_error_set(p->error, WEFT_ERR_MEMORY, "no memory for the plan in %s", p->where);
        return NULL;
    }
    if (take(p, '{')) {
        n->kind = NODE_OBJECT;
        members(p, n, '}', depth);
    } else if (take(p, '[')) {
        n->kind = NODE_LIST;
        members(p, n, ']', depth);
    } else if (*p->at == '"') {
        n->kind = NODE_STRING;
        n->text = string(p);
    } else {
        const char *from = p->at;

        n->kind = NODE_OTHER;
        while (p->at < p->end && (isalnum((unsigned char)*p->at) || strchr("+-.", *p->at)))
            p->at++;
        if (p->at == from)
            fail(p, "there is no value");
        else
            n->text = copy(p, from, (size_t)(p->at - from));
    }
    if (p->status != WEFT_OK) {
        free_node(n);
        return NULL;
    }
    return n;
}

/* ---- as text ------------------------------------------------------------------------------------- */

static const node *get(const node *object, const char *key)
{
    for (const node *n = object->first; n; n = n->next) {
        if (n->key && strcmp(n->key, key) == 0)
            return n;
    }
    return NULL;
}

/* "?" is a word that nothing has: the reader of the text says what is missing where. */
static const char *text_of(const node *object, const char *key)
{
    const node *n = get(object, key);

    return n && n->text && n->text[0] && !strchr(n->text, ' ') ? n->text : "?";
}

static bool is_true(const node *object, const char *key)
{
    return strcmp(text_of(object, key), "true") == 0;
}

static void write_span(const node *region, const char *key, FILE *file)
{
    const node *span = get(region, key);
    const node *begin = span ? span->first : NULL, *end = begin ? begin->next : NULL;

    fprintf(file, "%s:%s", begin && begin->text ? begin->text : "?", end && end->text ? end->text : "?");
}

static void write_regions(const node *list, const char *between, FILE *file)
{
    for (const node *n = list ? list->first : NULL; n; n = n->next) {
        fprintf(file, "%s@%s#%s[", text_of(n, "operand"), text_of(n, "rank"),
                get(n, "batch") ? text_of(n, "batch") : "0");
        write_span(n, "rows", file);
        fputs(", ", file);
        write_span(n, "cols", file);
        fputs(n->next ? "]" : "] ", file);
        if (n->next)
            fputs(between, file);
    }
}

static void write_task(const node *plan, const node *task, FILE *file)
{
    const node *to = get(task, "to"), *from = get(task, "from"), *acc = get(task, "acc"),
               *extras = get(task, "epilogue_from"), *waits = get(task, "waits"), *posts = get(task, "posts");
    bool product = strcmp(text_of(task, "kind"), "GEMM") == 0;

    fprintf(file, "r%s lane %s task %s %s ", text_of(plan, "rank"), text_of(task, "lane"),
            text_of(task, "task"), text_of(task, "kind"));
    if (to) {
        const node *rows = to->first ? get(to->first, "rows") : NULL;
        const char *begin = rows && rows->first && rows->first->text ? rows->first->text : "?";
        const char *end = rows && rows->first && rows->first->next && rows->first->next->text
                              ? rows->first->next->text
                              : "??";

        if (strcmp(text_of(task, "kind"), "COPY") == 0 && strcmp(begin, end) == 0) {
            if (get(to->first, "rank"))
                fprintf(file, "nothing@%s ", text_of(to->first, "rank"));
            else
                fputs("nothing ", file);
        } else {
            write_regions(to, ", ", file);
            fputs("= ", file);
            write_regions(from, product ? " * " : " + ", file);
            if (acc)
                fputs("+ ", file);
            write_regions(acc, " + ", file);
        }
    }
    if (is_true(task, "epilogue"))
        fputs(extras ? "epilogue with " : "epilogue ", file);
    write_regions(extras, ", ", file);
    if (is_true(task, "carry"))
        fputs("carry ", file);
    for (const node *n = waits ? waits->first : NULL; n; n = n->next)
        fprintf(file, "%s%s>=%s ", n == waits->first ? "wait " : "", text_of(n, "signal"),
                text_of(n, "count"));
    for (const node *n = posts ? posts->first : NULL; n; n = n->next)
        fprintf(file, "%s%s@%s ", n == posts->first ? "post " : "", text_of(n, "signal"), text_of(n, "rank"));
    fputc('\n', file);
}

static void write_operand(const node *operand, FILE *file)
{
    static const char *const flags[][2] = {{"rows_parted", "rows-parted"},
                                           {"cols_parted", "cols-parted"},
                                           {"transposed", "transposed"},
                                           {"packed", "packed"},
                                           {"handed_on", "handed-on"},
                                           {"paired", "paired"},
                                           {"output", "output"}};

    fprintf(file, "operand %s %s %s %s x %s batch %s", text_of(operand, "name"), text_of(operand, "place"),
            text_of(operand, "dtype"), text_of(operand, "rows"), text_of(operand, "cols"),
            get(operand, "batch") ? text_of(operand, "batch") : "1");
    if (get(operand, "row_granule"))
        fprintf(file, " row-granule %s", text_of(operand, "row_granule"));
    if (get(operand, "col_granule"))
        fprintf(file, " col-granule %s", text_of(operand, "col_granule"));
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (is_true(operand, flags[i][0]))
            fprintf(file, " %s", flags[i][1]);
    }
    fputc('\n', file);
}

static void write_plan(const node *plan, FILE *file)
{
    const node *operands = get(plan, "operands"), *lanes = get(plan, "lanes"), *tasks = get(plan, "tasks"),
               *domains = get(plan, "domains");
    long lane = 0;

    fprintf(file, "plan %s %s rank %s of %s", text_of(plan, "op"), text_of(plan, "schedule"),
            text_of(plan, "rank"), text_of(plan, "ranks"));
    if (get(plan, "hash"))
        fprintf(file, ", hash %s", text_of(plan, "hash"));
    fputs("\nproblem", file);
    for (int i = 0; weft_field_name(i); i++) {
        if (get(plan, weft_field_name(i)))
            fprintf(file, " %s %s", weft_field_name(i), text_of(plan, weft_field_name(i)));
    }
    fputc('\n', file);
    if (domains)
        fputs("domains", file);
    for (const node *n = domains ? domains->first : NULL; n; n = n->next)
        fprintf(file, " %s", n->text ? n->text : "?");
    fputs(domains ? "\n" : "", file);
    for (const node *n = operands ? operands->first : NULL; n; n = n->next)
        write_operand(n, file);
    fprintf(file, "signals %s\n", text_of(plan, "signals"));
    for (const node *n = lanes ? lanes->first : NULL; n; n = n->next)
        fprintf(file, "lane %ld %s\n", lane++, text_of(n, "kind"));
    for (const node *n = tasks ? tasks->first : NULL; n; n = n->next)
        write_task(plan, n, file);
}

weft_status weft_plan_json_to_text(const char *json, size_t bytes, const char *where, char **text,
                                   size_t *length, weft_error_text *error)
{
    parser p = {.at = json, .begin = json, .end = json + bytes, .where = where, .error = error};
    char *lines = NULL;
    size_t used = 0;
    FILE *file = open_memstream(&lines, &used);
    bool written;

    if (!file)
        return weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan in %s", where);
    for (skip(&p); p.status == WEFT_OK && p.at < p.end; skip(&p)) {
        node *plan = value(&p, 0);

        if (plan && plan->kind == NODE_OBJECT)
            write_plan(plan, file);
        else if (plan)
            fail(&p, "a plan is an object for each rank");
        free_node(plan);
    }
    written = !ferror(file);
    if (fclose(file) != 0 || !written)
        p.status = weft_error_set(error, WEFT_ERR_MEMORY, "no memory for the plan in %s", where);
    if (p.status != WEFT_OK) {
        free(lines);
        return p.status;
    }
    *text = lines;
    *length = used;
    return WEFT_OK;
}
