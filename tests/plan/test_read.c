/*
 * What is printed can be read back, in either form, and is the same to the last field; what is broken is told
 * in one line that says where. Seeds of the broken ones are printed when they fail.
 *
 * usage: test_plan_read [SEED [TEN TIMES THE BROKEN TEXTS OF A PLAN]]
 */
#include "interpret.h"
#include "plan/check.h"
#include "plan/print.h"
#include "plan/read.h"

#include "support/check.h"

#include <ctype.h>

static char *print_all(const weft_plan_part *parts, int world, bool json, size_t *bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, bytes);

    for (int rank = 0; rank < world; rank++)
        (json ? weft_plan_print_json : weft_plan_print_text)(&parts[rank], file);
    fclose(file);
    return text;
}

static void comes_back(const weft_problem *problem, const int32_t *domain, int world)
{
    weft_plan_part parts[5];

    CHECK(interpret_make_over(problem, domain, world, parts));
    for (int json = 0; json < 2; json++) {
        weft_error_text error = {0};
        weft_check_report report;
        weft_plan_part *read = NULL;
        size_t bytes;
        char *text = print_all(parts, world, json, &bytes);
        int ranks = 0;

        CHECK_INT(weft_plan_read(text, bytes, "here", &read, &ranks, &error), WEFT_OK);
        if (!read) {
            fprintf(stderr, "%s: %s\n", interpret_describe(problem, world), error.text);
            free(text);
            continue;
        }
        CHECK_INT(ranks, world);
        for (int rank = 0; rank < world; rank++) {
            CHECK(weft_plan_part_hash(&read[rank]) == weft_plan_part_hash(&parts[rank]));
            CHECK(memcmp(read[rank].signal_posts, parts[rank].signal_posts,
                         parts[rank].signal_count * sizeof(uint32_t)) == 0);
            CHECK(weft_problem_same(&read[rank].problem, &parts[rank].problem));
            CHECK(!read[rank].domain == !parts[rank].domain);
            CHECK(!read[rank].domain || memcmp(read[rank].domain, parts[rank].domain,
                                               (size_t)world * sizeof(*parts[rank].domain)) == 0);
        }
        CHECK_INT(weft_plan_check(read, world, &report, &error), WEFT_OK);
        CHECK_INT(report.count, 0);
        CHECK_INT(interpret(read, world, 2, false, 1), INTERPRET_EXACT);
        weft_plan_parts_free(read, ranks);
        free(text);
    }
    interpret_free(parts, world);
}

/* Breaks one thing; how many bytes are left. */
static size_t break_once(char *text, size_t bytes, uint64_t *seed)
{
    size_t at = (size_t)(check_random(seed) % bytes), count = 1 + (size_t)(check_random(seed) % 12);

    if (count > bytes - at)
        count = bytes - at;
    switch (check_random(seed) % 4) {
    case 0: /* gone */
        memmove(text + at, text + at + count, bytes - at - count);
        return bytes - count;
    case 1: /* cut off */
        return at;
    case 2: /* other letters */
        for (size_t i = 0; i < count; i++)
            text[at + i] = " 0123456789-@#[]:,>=rx{}\"\\n\\"[check_random(seed) % 27];
        return bytes;
    default: /* another number */
        while (at < bytes && !isdigit((unsigned char)text[at]))
            at++;
        if (at < bytes)
            text[at] = (char)('0' + check_random(seed) % 10);
        return bytes;
    }
}

/* Up to four things are broken in the text: it is refused in one line, or still a plan that the checker can
 * judge. */
static void break_text(const char *text, size_t bytes, uint64_t seed, long *refused)
{
    char *broken = malloc(bytes + 1);
    uint64_t state = seed;
    weft_error_text error = {0};
    weft_check_report report;
    weft_plan_part *read = NULL;
    int ranks = 0, before = check_failures;

    memcpy(broken, text, bytes);
    for (uint64_t left = 1 + check_random(&state) % 4; left && bytes; left--)
        bytes = break_once(broken, bytes, &state);
    if (weft_plan_read(broken, bytes, "here", &read, &ranks, &error) == WEFT_OK) {
        CHECK_INT(weft_plan_check(read, ranks, &report, &error), WEFT_OK);
        weft_plan_parts_free(read, ranks);
    } else {
        ++*refused;
        CHECK_HAS(error.text, "here");
        CHECK(!strchr(error.text, '\n'));
    }
    if (check_failures > before)
        fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    free(broken);
}

static void refuses(const char *text, const char *sentence)
{
    weft_error_text error = {0};
    weft_plan_part *read = NULL;
    int ranks = 0;

    CHECK_INT(weft_plan_read(text, strlen(text), "a.plan", &read, &ranks, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, sentence);
}

#define HEAD "plan all_reduce custom rank 0 of 1\nproblem count 4\noperand send user float32 1 x 4\n"

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    long count = check_repeat(6, 200), refused = 0,
         tries = argc > 2 ? strtol(argv[2], NULL, 10) : check_repeat(400, 40000);
    interpret_kind kind;

    for (int i = 0; interpret_kind_at(i, &kind); i++) {
        for (long j = 0; j < count; j++) {
            uint64_t state = first + 1000u * (uint64_t)i + (uint64_t)j;
            weft_problem problem = interpret_random(kind.op, kind.schedule, kind.layout, &state);
            int world = 1 + (int)(check_random(&state) % 5);
            weft_plan_part parts[5];
            int32_t domain[5] = {0};

            problem.root = (int)(check_random(&state) % (uint64_t)world);
            if (j % 2 && !(kind.layout == WEFT_LAYOUT_GATHER_B && problem.b_form == WEFT_B_PREPACKED))
                interpret_domains(world, domain, &state);
            comes_back(&problem, domain, world);
            if (j > 1 || !interpret_make_over(&problem, domain, world, parts))
                continue;
            for (int json = 0; json < 2; json++) {
                size_t bytes;
                char *text = print_all(parts, world, json, &bytes);

                for (long k = 0; k < tries / 10; k++)
                    break_text(text, bytes, state + (uint64_t)k, &refused);
                free(text);
            }
            interpret_free(parts, world);
        }
    }
    CHECK(refused > 100);
    refuses("", "there is no plan");
    refuses("operand A user float32 1 x 1\n", "a.plan, line 1: a plan begins with");
    refuses("plan add custom rank 0 of 1\n", "line 1: 'add' is no operation");
    refuses("plan all_reduce ring rank 0 of 1\n", "'ring' is no schedule");
    refuses("plan all_reduce custom rank 0 of 2\n", "the file ends after rank 0");
    refuses("plan all_reduce custom rank 1 of 2\n", "comes where rank 0 of 2 should");
    refuses(HEAD "operand send user float32 1 x 4\n", "line 4: there are two operands send");
    refuses(HEAD "operand mine user float32 1 x 4\n", "a caller has no operand mine");
    refuses(HEAD "lane 0 compute\nr0 lane 1 task 0 ENTER\n", "the lane '1' is not a number from 0 to 0");
    refuses(HEAD "lane 0 compute\nr0 lane 0 task 1 ENTER\n", "task 1 comes where task 0 should");
    refuses(HEAD "lane 0 compute\nr0 lane 0 task 0 COPY recv[0:1, 0:4] = send[0:1, 0:4]\n",
            "line 5: there is no operand 'recv'");
    refuses(HEAD "lane 0 compute\nr0 lane 0 task 0 ENTER post 3@1\n",
            "the rank '1' is not a number from 0 to 0");
    refuses(HEAD "signals 2\nlane 0 compute\nr0 lane 0 task 0 ENTER please\n", "'please' is too much");
    refuses("plan all_reduce custom rank 0 of 2\ndomains 0 2\n",
            "the domain '2' is not a number from 0 to 1");
    refuses("plan all_reduce custom rank 0 of 2\ndomains 0 0\n", "one domain is said by no line");
    refuses("plan all_reduce custom rank 0 of 2\ndomains 0 1\ndomains 0 1\n", "come twice");
    refuses("plan all_reduce custom rank 0 of 1, hash 12\nproblem count 4\n", "has the hash");
    refuses("{\"op\":\"all_reduce\",", "a string should begin here");
    refuses("{\"op\":[[[[[[[[[[[[[[[[[[[[1]", "nested deeper than any plan");
    return check_report("test_plan_read");
}
