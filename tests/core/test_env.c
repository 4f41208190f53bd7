/* Settings from the environment: read by kind, with defaults, and refused with a sentence that says what is
 * right. */
#include "core/env.h"
#include "support/check.h"

static void sizes(void)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: not a size */
    } cases[] = {{"0", 0},
                 {"4096", 4096},
                 {"1K", 1024},
                 {"512M", (int64_t)512 << 20},
                 {"2g", (int64_t)2 << 30},
                 {"1.5G", (int64_t)3 << 29},
                 {"1T", (int64_t)1 << 40},
                 {"3MiB", 3 << 20},
                 {"", -1},
                 {"lots", -1},
                 {"5X", -1},
                 {"1Kx", -1},
                 {"5 ", -1},
                 {"5 B", -1},
                 {"-1", -1},
                 {"1e30", -1},
                 {"nan", -1},
                 {"inf", -1}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int64_t bytes = -1;

        CHECK_INT(weft_parse_bytes(cases[i].text, &bytes), cases[i].bytes >= 0);
        if (cases[i].bytes >= 0)
            CHECK_INT(bytes, cases[i].bytes);
    }
}

static void values(void)
{
    weft_error_text error = {0};
    int64_t bytes = -1;
    double seconds = 0;

    unsetenv("WEFT_HEAP");
    unsetenv("WEFT_ENTER_TIMEOUT");
    CHECK_INT(weft_env_bytes(WEFT_ENV_HEAP, &bytes, &error), WEFT_OK);
    CHECK_INT(bytes, 0);
    setenv("WEFT_HEAP", "64M", 1);
    CHECK_INT(weft_env_bytes(WEFT_ENV_HEAP, &bytes, &error), WEFT_OK);
    CHECK_INT(bytes, 64 << 20);
    setenv("WEFT_HEAP", "much", 1);
    CHECK_INT(weft_env_bytes(WEFT_ENV_HEAP, &bytes, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "WEFT_HEAP is \"much\"");
    CHECK_INT(weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &seconds, &error), WEFT_OK);
    CHECK(seconds == 600);
    setenv("WEFT_ENTER_TIMEOUT", "0.25", 1);
    CHECK_INT(weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &seconds, &error), WEFT_OK);
    CHECK(seconds == 0.25);
    setenv("WEFT_ENTER_TIMEOUT", "-3", 1);
    CHECK_INT(weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &seconds, &error), WEFT_ERR_ARGUMENT);
    CHECK_HAS(error.text, "positive number of seconds");
    setenv("WEFT_ENTER_TIMEOUT", "1e300", 1); /* in nanoseconds it would be no number */
    CHECK_INT(weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &seconds, &error), WEFT_ERR_ARGUMENT);
    CHECK_INT(weft_env_check(&error), WEFT_ERR_ARGUMENT);
    setenv("WEFT_ENTER_TIMEOUT", "", 1); /* empty is unset */
    CHECK_INT(weft_env_seconds(WEFT_ENV_ENTER_TIMEOUT, &seconds, &error), WEFT_OK);
}

static void choices(void)
{
    static const char *const wrong[] = {"pigeon", "aut", "auto,", "tcp, ucx", ","};
    weft_error_text error;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        setenv("WEFT_NET", wrong[i], 1);
        CHECK_INT(weft_env_check(&error), WEFT_ERR_ARGUMENT);
        CHECK_HAS(error.text, "it takes one of auto, tcp, ucx");
    }
    setenv("WEFT_NET", "ucx", 1);
    CHECK_INT(weft_env_check(&error), WEFT_OK);
    setenv("WEFT_HUGE", "on", 1);
    CHECK_INT(weft_env_check(&error), WEFT_ERR_ARGUMENT);
    unsetenv("WEFT_NET");
    unsetenv("WEFT_HUGE");
}

static void described(void)
{
    for (int id = 0; id < WEFT_ENV_IDS; id++) {
        const weft_env_entry *entry = weft_env_describe((weft_env_id)id);

        CHECK(strncmp(entry->name, "WEFT_", 5) == 0 && strlen(entry->help) > 10);
        CHECK(*weft_env_kind_name(entry->kind));
    }
}

int main(void)
{
    sizes();
    values();
    unsetenv("WEFT_HEAP");
    choices();
    described();
    return check_report("test_core_env");
}
