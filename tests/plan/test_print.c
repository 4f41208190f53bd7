/* A part prints one greppable line per task, and one line of balanced JSON. */
#include "plan/print.h"

#include "support/check.h"

static char *printed(const weft_plan_part *part, void (*print)(const weft_plan_part *, FILE *))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    print(part, file);
    fclose(file);
    return text;
}

static long count_of(const char *text, char wanted)
{
    long count = 0;

    for (; *text; text++)
        count += *text == wanted;
    return count;
}

int main(void)
{
    weft_problem problem = {.op = WEFT_OP_GEMM_RS,
                            .schedule = WEFT_SCHEDULE_REDUCESCATTER_TILING_A,
                            .m = 8,
                            .n = 6,
                            .k = 4,
                            .l = 1,
                            .alpha = 1,
                            .beta = 1,
                            .bias = 1,
                            .tuning.tile_m = 4,
                            .b_form = WEFT_B_PACK_IN_RUN};
    weft_error_text error;
    weft_plan_part part;
    char *text, *json;

    CHECK_INT(weft_plan_make(&problem, 2, 0, &part, &error), WEFT_OK);
    text = printed(&part, weft_plan_print_text);
    CHECK_HAS(text, "plan gemm_rs ReduceScatter1D_TilingA_RotatingC rank 0 of 2");
    CHECK_HAS(text, "\noperand partial staging float32 4 x 6 handed-on\n");
    CHECK_HAS(text, "\nr0 lane 0 task 0 ENTER post 0@1\n");
    CHECK_HAS(text, "\nr0 lane 0 task 1 COPY packedB[0:2, 0:6] = B[0:2, 0:6]\n");
    CHECK_HAS(text, "\nr0 lane 0 task 2 GEMM partial@1[0:4, 0:6] = A[4:8, 0:2] * packedB[0:2, 0:6] wait 1>=1 "
                    "post 5@1 2@1\n");
    CHECK_HAS(text,
              "task 3 GEMM D[0:4, 0:6] = A[0:4, 0:2] * packedB[0:2, 0:6] + partial[0:4, 0:6] epilogue with "
              "C[0:4, 0:6], bias[0:1, 0:6] wait 5>=1\n");
    CHECK_HAS(text, "\nr0 lane 0 task 4 EXIT wait 3>=1\n");
    CHECK_INT(count_of(text, '\n'), 2 + part.operand_count + 1 + part.lane_count + part.task_count);

    json = printed(&part, weft_plan_print_json);
    CHECK_INT(count_of(json, '\n'), 1);
    CHECK_INT(count_of(json, '{'), count_of(json, '}'));
    CHECK_INT(count_of(json, '['), count_of(json, ']'));
    CHECK_INT(count_of(json, '"') % 2, 0);
    CHECK_HAS(
        json,
        "{\"name\":\"partial\",\"place\":\"staging\",\"dtype\":\"float32\",\"rows\":4,\"cols\":6,\"batch\":1,"
        "\"rows_parted\":false,\"cols_parted\":false,\"transposed\":false,\"packed\":false,\"handed_on\":"
        "true,\"paired\":false,\"output\":false}");
    CHECK_HAS(json, "\"kind\":\"GEMM\",\"to\":[{\"operand\":\"partial\",\"rank\":1,\"batch\":0,\"rows\":[0,4]"
                    ",\"cols\":[0,6]}]");
    CHECK_HAS(json, "\"acc\":[{\"operand\":\"partial\",\"rank\":0");
    CHECK_HAS(json, "\"waits\":[{\"signal\":5,\"count\":1}]");
    free(text);
    free(json);
    weft_plan_part_free(&part);
    return check_report("test_plan_print");
}
