/* Rows print as JSON objects or as an aligned table from the same values; statistics are the right ones. */
#include "report/report.h"

#include "support/check.h"

#include <math.h>

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

int main(void)
{
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
