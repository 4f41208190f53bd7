/* Rows print as JSON objects or as an aligned table from the same values; statistics are the right ones. */
#include "report/page.h"
#include "report/report.h"

#include "support/check.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static const report_column columns[] = {
    {"M", "m", REPORT_PLAIN, 6},
    {"fused", "fused_us", REPORT_TIME, 14},
    {"hidden", "hidden_pct", REPORT_PERCENT, 6},
    {"error", "max_err", REPORT_ERROR, 8},
    {"ok", "ok", REPORT_PLAIN, 3},
    {0},
};

static char printed[4096];

static int print_row(bool json, bool ok)
{
    FILE *file = tmpfile();
    report r;

    report_open(&r, file, json, columns);
    report_text(&r, "op", "%s", "a \"quoted\"\\\n op");
    report_int(&r, "m", 4096);
    report_time(&r, "fused_us", (report_stats){100.0, 98.0, 104.0});
    report_real(&r, "hidden_pct", NAN);
    report_real(&r, "max_err", 0.00012);
    report_bool(&r, "ok", ok);
    report_row(&r);
    report_note(&r, "for people");
    int status = report_close(&r);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    fclose(file);
    return status;
}

/* A name with these bytes, as JSON. */
static const char *named(const char *text)
{
    FILE *file = tmpfile();
    report r;

    report_open(&r, file, true, columns);
    report_text(&r, "machine", "%s", text);
    report_row(&r);
    report_close(&r);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    fclose(file);
    return printed;
}

/* JSON is UTF-8, whatever the bytes of a name are. */
static void test_encoding(void)
{
    CHECK_HAS(named("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\xa7\xb5"),
              "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\xa7\xb5");
    CHECK_HAS(named("gr\xfc\xdf"), "\"gr\\ufffd\\ufffd\"");
    CHECK_HAS(named("\xc0\xaf \xe0\x80\x80"), "\"\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd\"");
    CHECK_HAS(named("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");
    CHECK_HAS(named("\xf4\x90\x80\x80 \xff"), "\"\\ufffd\\ufffd\\ufffd\\ufffd \\ufffd\"");
    CHECK_HAS(named("cut \xe2\x82"), "\"cut \\ufffd\\ufffd\"");
}

static void hides(report_stats gemm, report_stats unfused, report_stats fused, const char *table,
                  const char *json)
{
    static const report_column shown[] = {{"hidden", "hidden", REPORT_PLAIN, 6}, {0}};

    for (int as_json = 0; as_json < 2; as_json++) {
        FILE *file = tmpfile();
        report r;

        report_open(&r, file, as_json, shown);
        report_hidden(&r, gemm, unfused, fused);
        report_row(&r);
        report_close(&r);
        rewind(file);
        printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
        fclose(file);
        CHECK_HAS(printed, as_json ? json : table);
        CHECK(!as_json || !strstr(printed, "\"hidden\":"));
    }
}

/* A share is told where there is something to hide; a loss is called one. */
static void test_hidden(void)
{
    report_stats gemm = {100, 99, 101};

    hides(gemm, (report_stats){120, 119, 121}, (report_stats){105, 104, 106}, "75%", "\"hidden_pct\": 75}");
    hides(gemm, (report_stats){120, 119, 121}, (report_stats){130, 129, 131}, "slower",
          "\"hidden_pct\": -50}");
    hides(gemm, (report_stats){120, 119, 121}, (report_stats){125, 115, 135}, "0%", "\"hidden_pct\": -25}");
    hides(gemm, (report_stats){101, 98, 104}, (report_stats){100, 98, 104}, "–", "\"hidden_pct\": null}");
    hides(gemm, (report_stats){98, 97, 99}, (report_stats){97, 96, 98}, "–", "\"hidden_pct\": null}");
    hides(gemm, (report_stats){101, 98, 104}, (report_stats){120, 119, 121}, "slower",
          "\"hidden_pct\": null}");
}

/* Rows whose spread is most of their time say so at the end, once; for programs the numbers do. */
static void closes(double high, bool json, bool noisy)
{
    static const report_column one[] = {{"fused", "fused_us", REPORT_TIME, 12}, {0}};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    report r;

    report_open(&r, out, json, one);
    for (int i = 0; i < 3; i++) {
        report_time(&r, "fused_us", (report_stats){100, 98, i ? high : 104});
        report_row(&r);
    }
    CHECK_INT(report_close(&r), 0);
    fclose(out);
    CHECK((strstr(text, "something else ran on these CPUs") != NULL) == noisy);
    free(text);
}

/* A file for a picture is written and read by its path, and has no name that could stay behind. */
static void pictures_leave_no_file(void)
{
    char path[REPORT_PAGE_PATH], text[8] = "";
    int file = report_page_scratch(path);
    struct stat about;
    FILE *out = fopen(path, "we"), *in;

    CHECK(file >= 0 && out && fputs("<svg>", out) >= 0 && fclose(out) == 0);
    CHECK(fstat(file, &about) == 0 && about.st_nlink == 0);
    in = fopen(path, "re");
    CHECK(in && fgets(text, sizeof(text), in) && strcmp(text, "<svg>") == 0);
    if (in)
        fclose(in);
    close(file);
}

int main(void)
{
    pictures_leave_no_file();
    closes(104, false, false);
    closes(300, false, true);
    closes(300, true, false);
    test_hidden();
    test_encoding();
    CHECK_INT(print_row(true, true), 0);
    CHECK(strcmp(printed, "{\"op\": \"a \\\"quoted\\\"\\\\\\u000a op\", \"m\": 4096, \"fused_us\": 100, "
                          "\"fused_us_low\": 98, \"fused_us_high\": 104, \"hidden_pct\": null, "
                          "\"max_err\": 0.00012, \"ok\": true}\n") == 0);
    CHECK_INT(print_row(true, false), 1);
    CHECK_HAS(printed, "\"ok\": false");
    CHECK_INT(print_row(false, false), 1);
    CHECK_HAS(printed, "100.0 ± 3%");
    CHECK_HAS(printed, "1.2e-04");
    CHECK_HAS(printed, "NO");
    CHECK_HAS(printed, "for people");

    double samples[] = {5, 1, 4, 2, 3};
    report_stats stats = report_summarise(samples, 5);
    CHECK(stats.median == 3 && fabs(stats.low - 1.4) < 1e-12 && fabs(stats.high - 4.6) < 1e-12);
    double two[] = {4, 2};
    CHECK(report_summarise(two, 2).median == 3);
    CHECK(isnan(report_summarise(samples, 0).median));
    return check_report("test_tools_report");
}
