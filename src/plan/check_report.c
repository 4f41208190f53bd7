/* The checker's sentences. */
#include "plan/check_stages.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const kind_names[] = {"ENTER", "COPY", "GEMM", "REDUCE", "EXIT"};

void weft_check_find(weft_checker *checker, int rank, int64_t task, const char *format, ...)
{
    weft_check_report *report = checker->report;
    va_list arguments;

    if (report->count < WEFT_FINDINGS_MAX) {
        weft_finding *finding = &report->findings[report->count];

        finding->rank = rank;
        finding->task = task;
        va_start(arguments, format);
        vsnprintf(finding->text, sizeof(finding->text), format, arguments);
        va_end(arguments);
    }
    report->count++;
}

/* Room for four short texts at a time. */
static char *text_buffer(void)
{
    static _Thread_local char texts[4][120];
    static _Thread_local int next;

    next = (next + 1) % 4;
    return texts[next];
}

const char *weft_check_task_text(const weft_checker *checker, uint32_t task)
{
    char *text = text_buffer();
    int rank = 0;

    while (task >= checker->task_base[rank + 1])
        rank++;
    snprintf(text, 120, "%s task %u of rank %d",
             kind_names[checker->parts[rank].tasks[task - checker->task_base[rank]].kind],
             task - checker->task_base[rank], rank);
    return text;
}

const char *weft_check_region_text(const weft_checker *checker, const weft_region *region)
{
    char *text = text_buffer();

    snprintf(text, 120, "%s of rank %d, batch %lld, rows %lld..%lld, cols %lld..%lld",
             checker->parts[0].operands[region->operand].name, region->rank, (long long)region->batch,
             (long long)region->row0, (long long)(region->row0 + region->rows), (long long)region->col0,
             (long long)(region->col0 + region->cols));
    return text;
}
