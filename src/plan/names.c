/*
 * The names of operations and schedules: one table each, used by everything that prints or reads them.
 * A schedule's own name is the first in its row; the others are names users know from elsewhere.
 */
#include "plan/plan.h"

#include <strings.h>

static const char *const op_names[] = {
    [WEFT_OP_AG_GEMM] = "ag_gemm",
    [WEFT_OP_GEMM_RS] = "gemm_rs",
    [WEFT_OP_GEMM_AR] = "gemm_ar",
    [WEFT_OP_GEMM_AS] = "gemm_as",
    [WEFT_OP_ALL_REDUCE] = "all_reduce",
    [WEFT_OP_ALL_GATHER] = "all_gather",
    [WEFT_OP_REDUCE_SCATTER] = "reduce_scatter",
    [WEFT_OP_ALL_TO_ALL] = "all_to_all",
    [WEFT_OP_BROADCAST] = "broadcast",
};

enum { OP_COUNT = sizeof op_names / sizeof op_names[0], MOST_NAMES = 5 };

static const char *const schedule_names[][MOST_NAMES] = {
    [WEFT_SCHEDULE_AUTO] = {"auto"},
    [WEFT_SCHEDULE_UNFUSED] = {"unfused", "reference"},
    [WEFT_SCHEDULE_DIRECT] = {"direct"},
    [WEFT_SCHEDULE_ALLGATHER_ROTATING_A] = {"AllGather1D_TilingCD_RotatingA", "rotating_a"},
    [WEFT_SCHEDULE_ALLGATHER_ROTATING_B] = {"AllGather1D_TilingCD_RotatingB", "rotating_b"},
    [WEFT_SCHEDULE_REDUCESCATTER_TILING_A] = {"ReduceScatter1D_TilingA_RotatingC", "tiling_a"},
    [WEFT_SCHEDULE_REDUCESCATTER_TILING_B] = {"ReduceScatter1D_TilingB_RotatingC", "tiling_b"},
    [WEFT_SCHEDULE_ONE_SHOT] = {"one_shot", "one_shot_all_reduce", "triton_one_shot_all_reduce"},
    [WEFT_SCHEDULE_TWO_SHOT] = {"two_shot", "two_shot_all_reduce", "triton_two_shot_all_reduce"},
    [WEFT_SCHEDULE_MULTIMEM] = {"multimem", "multimem_all_reduce", "triton_multimem_all_reduce"},
    [WEFT_SCHEDULE_ALL_SCATTER] = {"all_scatter"},
    [WEFT_SCHEDULE_PULL] = {"pull"},
    [WEFT_SCHEDULE_PUSH] = {"push"},
    [WEFT_SCHEDULE_PACKETS] = {"packets"},
    [WEFT_SCHEDULE_CUSTOM] = {"custom"},
    [WEFT_SCHEDULE_TWO_LEVEL] = {"two_level"},
    [WEFT_SCHEDULE_TWO_SHOT_PACKETS] = {"two_shot_packets"},
};

enum { SCHEDULE_COUNT = sizeof schedule_names / sizeof schedule_names[0] };

const char *weft_op_name(weft_op op)
{
    return (unsigned)op < OP_COUNT ? op_names[op] : "invalid";
}

int weft_op_parse(const char *name, weft_op *op)
{
    for (int i = 0; i < OP_COUNT; i++) {
        if (strcasecmp(name, op_names[i]) == 0) {
            *op = (weft_op)i;
            return 0;
        }
    }
    return -1;
}

const char *weft_schedule_name(weft_op op, weft_schedule schedule)
{
    (void)op;
    return (unsigned)schedule < SCHEDULE_COUNT ? schedule_names[schedule][0] : "invalid";
}

int weft_schedule_parse(const char *name, weft_schedule *schedule)
{
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        for (int j = 0; j < MOST_NAMES && schedule_names[i][j]; j++) {
            if (strcasecmp(name, schedule_names[i][j]) == 0) {
                *schedule = (weft_schedule)i;
                return 0;
            }
        }
    }
    return -1;
}

const weft_schedule *weft_schedule_list(weft_op op, weft_layout layout, int *count)
{
    int unwanted;

    if (!count)
        count = &unwanted;
#define LIST(...)                                                                                            \
    {                                                                                                        \
        static const weft_schedule list[] = {__VA_ARGS__};                                                   \
        *count = (int)(sizeof list / sizeof list[0]);                                                        \
        return list;                                                                                         \
    }
    switch (op) {
    case WEFT_OP_AG_GEMM:
        if (layout == WEFT_LAYOUT_GATHER_A_K || layout == WEFT_LAYOUT_GATHER_B_K)
            LIST(WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_UNFUSED)
        if (layout == WEFT_LAYOUT_GATHER_B)
            LIST(WEFT_SCHEDULE_ALLGATHER_ROTATING_B, WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_UNFUSED,
                 WEFT_SCHEDULE_TWO_LEVEL)
        if (layout == WEFT_LAYOUT_GATHER_A || layout == WEFT_LAYOUT_DEFAULT)
            LIST(WEFT_SCHEDULE_ALLGATHER_ROTATING_A, WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_UNFUSED,
                 WEFT_SCHEDULE_TWO_LEVEL)
        break;
    case WEFT_OP_GEMM_RS:
        if (layout == WEFT_LAYOUT_SCATTER_COLS)
            LIST(WEFT_SCHEDULE_REDUCESCATTER_TILING_B, WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_UNFUSED,
                 WEFT_SCHEDULE_TWO_LEVEL)
        if (layout == WEFT_LAYOUT_SCATTER_ROWS || layout == WEFT_LAYOUT_DEFAULT)
            LIST(WEFT_SCHEDULE_REDUCESCATTER_TILING_A, WEFT_SCHEDULE_DIRECT, WEFT_SCHEDULE_UNFUSED,
                 WEFT_SCHEDULE_TWO_LEVEL)
        break;
    case WEFT_OP_GEMM_AR:
        LIST(WEFT_SCHEDULE_ONE_SHOT, WEFT_SCHEDULE_TWO_SHOT, WEFT_SCHEDULE_UNFUSED, WEFT_SCHEDULE_TWO_LEVEL)
    case WEFT_OP_GEMM_AS:
        LIST(WEFT_SCHEDULE_ALL_SCATTER, WEFT_SCHEDULE_UNFUSED, WEFT_SCHEDULE_TWO_LEVEL)
    case WEFT_OP_ALL_REDUCE:
        LIST(WEFT_SCHEDULE_ONE_SHOT, WEFT_SCHEDULE_TWO_SHOT, WEFT_SCHEDULE_MULTIMEM, WEFT_SCHEDULE_PUSH,
             WEFT_SCHEDULE_PACKETS, WEFT_SCHEDULE_TWO_SHOT_PACKETS, WEFT_SCHEDULE_TWO_LEVEL)
    case WEFT_OP_ALL_GATHER:
    case WEFT_OP_REDUCE_SCATTER:
    case WEFT_OP_ALL_TO_ALL:
    case WEFT_OP_BROADCAST:
        LIST(WEFT_SCHEDULE_PULL, WEFT_SCHEDULE_PUSH, WEFT_SCHEDULE_PACKETS, WEFT_SCHEDULE_TWO_LEVEL)
    }
#undef LIST
    *count = 0;
    return NULL;
}
