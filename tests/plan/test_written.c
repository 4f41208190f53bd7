/*
 * Plans as somebody might write them by hand, each wrong in its own way: the checker refuses them for that
 * reason, and names the rank, the task and the region. Beside them the same plans as they should be.
 */
#include "plan/check.h"
#include "plan/read.h"
#include "support/check.h"

enum { RANKS_MOST = 3, TASKS_MOST = 12 };

/* A task is its lane's number and the text of a plan from there on; lanes in order. */
typedef struct written {
    const char *op, *problem, *operands; /* operands: lines */
    int world, signals, lanes;
    const char *tasks[RANKS_MOST][TASKS_MOST];
    const char *says[3]; /* in the first finding; none: the plan is right */
} written;

#define SUMS_OF_TWO "operand send user float32 1 x 4\noperand recv user float32 1 x 4 output\n"
#define SUMS_OF(dtype)                                                                                       \
    "operand send user " dtype " 1 x 4\noperand recv user " dtype                                            \
    " 1 x 4 output\noperand kept staging " dtype " 1 x 4\n"
#define ALL "[0:1, 0:4]"
#define ADDS "0 REDUCE recv" ALL " = send@0" ALL " + send@1" ALL
#define ENTER_0 "0 ENTER post 0@1"
#define ENTER_1 "0 ENTER post 1@0"
#define EXIT_0 "0 EXIT wait 3>=1"
#define EXIT_1 "0 EXIT wait 2>=1"
#define RIGHT_1                                                                                              \
    {                                                                                                        \
        ENTER_1, ADDS " wait 0>=1 post 3@0", EXIT_1                                                          \
    }
#define OF_THREE "0 REDUCE recv" ALL " = send@0" ALL " + send@1" ALL " + send@2" ALL
#define PRODUCT                                                                                              \
    "operand A user float32 2 x 4 cols-parted\noperand B user float32 4 x 2 rows-parted\n"                   \
    "operand D user float32 2 x 2 output\noperand sums staging float32 2 x 2\n"                              \
    "operand mine private float32 2 x 2\n"
#define OF_PRODUCT "m 2 n 2 k 4 b_form plain workers 1"
#define MULTIPLY "0 GEMM sums[0:2, 0:2] = A[0:2, 0:2] * B[0:2, 0:2]"
#define TELL " post 4@0 4@1"

static const written plans[] = {
    /* As it should be. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF_TWO,
     2,
     4,
     1,
     {{ENTER_0, ADDS " wait 1>=1 post 2@1", EXIT_0}, RIGHT_1},
     {0}},
    {"all_reduce",
     "count 4 reduction average workers 1",
     SUMS_OF_TWO,
     2,
     4,
     1,
     {{ENTER_0, ADDS " wait 1>=1 post 2@1", EXIT_0}, RIGHT_1},
     {0}},
    /* An average that nobody divides, and one that is divided too early. */
    {"all_reduce",
     "count 4 reduction average workers 1",
     SUMS_OF("float32"),
     2,
     4,
     1,
     {{ENTER_0, "0 REDUCE kept" ALL " = send@0" ALL " + send@1" ALL " wait 1>=1 post 2@1",
       "0 COPY recv" ALL " = kept" ALL, EXIT_0},
      RIGHT_1},
     {"recv of rank 0, batch 0, rows 0..1, cols 0..4", "is a sum, which nothing has divided"}},
    {"all_reduce",
     "count 4 reduction average workers 1",
     SUMS_OF_TWO,
     2,
     4,
     1,
     {{ENTER_0, "0 REDUCE recv" ALL " = send" ALL " wait 1>=1 post 2@1", EXIT_0}, RIGHT_1},
     {"REDUCE task 1 of rank 0", "divides an incomplete sum", "recv of rank 0"}},
    /* One rank rounds on the way and the others do not. */
    {"all_reduce",
     "count 4 dtype bfloat16 workers 1",
     SUMS_OF("bfloat16"),
     3,
     6,
     1,
     {{"0 ENTER post 0@1 0@2", OF_THREE " wait 1>=1 2>=1 post 3@1 3@2", "0 EXIT wait 4>=1 5>=1"},
      {"0 ENTER post 1@0 1@2", "0 REDUCE kept" ALL " = send@0" ALL " + send@1" ALL " wait 0>=1 2>=1",
       "0 REDUCE recv" ALL " = kept" ALL " + send@2" ALL " post 4@0 4@2", "0 EXIT wait 3>=1 5>=1"},
      {"0 ENTER post 2@0 2@1", OF_THREE " wait 0>=1 1>=1 post 5@0 5@1", "0 EXIT wait 3>=1 4>=1"}},
     {"recv of rank 1", "is added up in another order than on rank 0"}},
    {"all_reduce",
     "count 4 dtype float32 workers 1",
     SUMS_OF("float32"),
     3,
     6,
     1,
     {{"0 ENTER post 0@1 0@2", OF_THREE " wait 1>=1 2>=1 post 3@1 3@2", "0 EXIT wait 4>=1 5>=1"},
      {"0 ENTER post 1@0 1@2", "0 REDUCE kept" ALL " = send@0" ALL " + send@1" ALL " wait 0>=1 2>=1",
       "0 REDUCE recv" ALL " = kept" ALL " + send@2" ALL " post 4@0 4@2", "0 EXIT wait 3>=1 5>=1"},
      {"0 ENTER post 2@0 2@1", OF_THREE " wait 0>=1 1>=1 post 5@0 5@1", "0 EXIT wait 3>=1 4>=1"}},
     {0}},
    {"all_reduce",
     "count 4 dtype float64 workers 1",
     SUMS_OF("float64"),
     3,
     6,
     1,
     {{"0 ENTER post 0@1 0@2", OF_THREE " wait 1>=1 2>=1 post 3@1 3@2", "0 EXIT wait 4>=1 5>=1"},
      {"0 ENTER post 1@0 1@2",
       "0 REDUCE recv" ALL " = send@2" ALL " + send@1" ALL " + send@0" ALL " wait 0>=1 2>=1 post 4@0 4@2",
       "0 EXIT wait 3>=1 5>=1"},
      {"0 ENTER post 2@0 2@1", OF_THREE " wait 0>=1 1>=1 post 5@0 5@1", "0 EXIT wait 3>=1 4>=1"}},
     {"recv of rank 1", "is added up in another order than on rank 0"}},
    /* Nobody but the root brings a `send`: there may be none. */
    {"broadcast",
     "count 4 root 0 workers 1",
     SUMS_OF("float32"),
     2,
     4,
     1,
     {{ENTER_0 " 2@1", "0 COPY recv" ALL " = send" ALL, EXIT_0},
      {ENTER_1, "0 COPY kept" ALL " = send" ALL, "0 COPY recv" ALL " = send@0" ALL " wait 0>=1 post 3@0",
       EXIT_1}},
     {"COPY task 1 of rank 1", "reads what only the root brings", "send of rank 1"}},
    /* A copy that overwrites what it reads. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF("float32"),
     2,
     4,
     1,
     {{ENTER_0, "0 COPY kept" ALL " = send" ALL, "0 COPY kept[0:1, 0:3] = kept[0:1, 1:4]",
       ADDS " wait 1>=1 post 2@1", EXIT_0},
      RIGHT_1},
     {"race: COPY task 2 of rank 0", "kept of rank 0"}},
    /* Two lanes post one signal: that there is one post does not say whose. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF("float32"),
     2,
     5,
     3,
     {{ENTER_0, "0 REDUCE recv" ALL " = kept" ALL " + send@1" ALL " wait 4>=1 1>=1 post 2@1", EXIT_0,
       "1 COPY kept[0:1, 0:2] = send[0:1, 0:2] post 4@0", "2 COPY kept[0:1, 2:4] = send[0:1, 2:4] post 4@0"},
      RIGHT_1},
     {"REDUCE task 1 of rank 0", "signal 4"}},
    /* Said to be through with a peer, and not through. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF_TWO,
     2,
     4,
     1,
     {{ENTER_0 " 2@1", ADDS " wait 1>=1", EXIT_0}, RIGHT_1},
     {"REDUCE task 1 of rank 0", "may still touch send of rank 1"}},
    /* A peer's memory before that peer is there. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF_TWO,
     2,
     4,
     1,
     {{ENTER_0, ADDS " post 2@1", EXIT_0}, RIGHT_1},
     {"REDUCE task 1 of rank 0", "send of rank 1", "before that rank's ENTER"}},
    /* Both wait for what the other does afterwards. */
    {"all_reduce",
     "count 4 workers 1",
     SUMS_OF_TWO,
     2,
     5,
     1,
     {{ENTER_0, ADDS " wait 1>=1 4>=1 post 4@1 2@1", EXIT_0},
      {ENTER_1, ADDS " wait 0>=1 4>=1 post 4@0 3@0", EXIT_1}},
     {"deadlock: REDUCE task 1 of rank 0 waits for ever"}},
    /* Right numbers in the wrong row. */
    {"all_to_all",
     "count 2 workers 1",
     "operand send user float32 2 x 2\noperand recv user float32 2 x 2 output\n",
     2,
     4,
     1,
     {{ENTER_0, "0 COPY recv[0:1, 0:2] = send[0:1, 0:2]",
       "0 COPY recv[1:2, 0:2] = send@1[0:1, 0:2] wait 1>=1 post 2@1", EXIT_0},
      {ENTER_1, "0 COPY recv[0:1, 0:2] = send[1:2, 0:2]",
       "0 COPY recv[1:2, 0:2] = send@0[1:2, 0:2] wait 0>=1 post 3@0", EXIT_1}},
     {"the result in recv of rank 1", "is not what the problem asks for"}},
    /* A part of k twice, though every region is where it should be. */
    {"gemm_ar",
     OF_PRODUCT,
     PRODUCT,
     2,
     5,
     1,
     {{ENTER_0, "0 GEMM mine[0:2, 0:2] = A[0:2, 0:2] * B[0:2, 0:2]",
       "0 GEMM sums[0:2, 0:2] = A[0:2, 1:2] * B[1:2, 0:2] + mine[0:2, 0:2] wait 1>=1 post 4@0 4@1",
       "0 REDUCE D[0:2, 0:2] = sums@0[0:2, 0:2] + sums@1[0:2, 0:2] epilogue wait 4>=2 post 2@1", EXIT_0},
      {ENTER_1, MULTIPLY " wait 0>=1" TELL,
       "0 REDUCE D[0:2, 0:2] = sums@0[0:2, 0:2] + sums@1[0:2, 0:2] epilogue wait 4>=2 post 3@0", EXIT_1}},
     {"GEMM task 2 of rank 0", "adds the same contribution twice"}},
    /* What is one rank's own. */
    {"gemm_ar",
     OF_PRODUCT,
     PRODUCT,
     2,
     5,
     1,
     {{ENTER_0, MULTIPLY " wait 1>=1" TELL,
       "0 REDUCE D[0:2, 0:2] = sums@0[0:2, 0:2] + mine@1[0:2, 0:2] epilogue wait 4>=2 post 2@1", EXIT_0},
      {ENTER_1, MULTIPLY " wait 0>=1" TELL,
       "0 REDUCE D[0:2, 0:2] = sums@0[0:2, 0:2] + sums@1[0:2, 0:2] epilogue wait 4>=2 post 3@0", EXIT_1}},
     {"REDUCE task 2 of rank 0", "private to another rank"}},
    /* The epilogue on what had it. */
    {"gemm_ar",
     OF_PRODUCT,
     PRODUCT,
     2,
     5,
     1,
     {{ENTER_0, MULTIPLY " wait 1>=1" TELL,
       "0 REDUCE mine[0:2, 0:2] = sums@0[0:2, 0:2] + sums@1[0:2, 0:2] epilogue wait 4>=2 post 2@1",
       "0 REDUCE D[0:2, 0:2] = mine[0:2, 0:2] epilogue", EXIT_0},
      {ENTER_1, MULTIPLY " wait 0>=1" TELL,
       "0 REDUCE D[0:2, 0:2] = sums@0[0:2, 0:2] + sums@1[0:2, 0:2] epilogue wait 4>=2 post 3@0", EXIT_1}},
     {"REDUCE task 3 of rank 0", "adds what is not a partial sum", "mine of rank 0"}},
};

static char *text_of(const written *plan)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    for (int rank = 0; rank < plan->world; rank++) {
        fprintf(out, "plan %s custom rank %d of %d\nproblem %s\n%ssignals %d\n", plan->op, rank, plan->world,
                plan->problem, plan->operands, plan->signals);
        for (int lane = 0; lane < plan->lanes; lane++)
            fprintf(out, "lane %d compute\n", lane);
        for (int i = 0; i < TASKS_MOST && plan->tasks[rank][i]; i++)
            fprintf(out, "r%d lane %c task %d%s\n", rank, plan->tasks[rank][i][0], i,
                    plan->tasks[rank][i] + 1);
    }
    fclose(out);
    return text;
}

int main(void)
{
    for (size_t i = 0; i < sizeof(plans) / sizeof(plans[0]); i++) {
        char *text = text_of(&plans[i]);
        weft_plan_part *parts = NULL;
        weft_error_text error = {0};
        weft_check_report report = {0};
        int world = 0, before = check_failures;

        CHECK_INT(weft_plan_read(text, strlen(text), "here", &parts, &world, &error), WEFT_OK);
        if (parts) {
            CHECK_INT(weft_plan_check(parts, world, &report, &error), WEFT_OK);
            CHECK_INT(report.count > 0, plans[i].says[0] != NULL);
            for (int j = 0; j < 3 && plans[i].says[j]; j++)
                CHECK_HAS(report.findings[0].text, plans[i].says[j]);
        }
        if (check_failures != before)
            fprintf(stderr, "plan %zu: %s%s\n%s", i, error.text, report.findings[0].text, text);
        weft_plan_parts_free(parts, world);
        free(text);
    }
    return check_report("test_plan_written");
}
