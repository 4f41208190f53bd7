/* Structs of older and newer callers: what is missing is zero, what is too much must be, and nothing is
 * written past the end. */
#include "core/sized.h"
#include "support/check.h"

#include <string.h>

typedef struct first {
    size_t size;
    int a, b;
} first;

typedef struct second {
    size_t size;
    int a, b, c, d;
} second;

enum { LEAST = sizeof(first) };

static void older_caller(void)
{
    struct {
        first it;
        int behind[2];
    } caller = {{sizeof(first), 1, 2}, {77, 77}};
    second library = {.c = 9, .d = 9}, full = {sizeof(full), 3, 4, 5, 6};

    CHECK(weft_sized_read(&library, sizeof(library), &caller, LEAST));
    CHECK(library.size == sizeof(library) && library.a == 1 && library.b == 2 && !library.c && !library.d);
    CHECK(weft_sized_write(&caller, &full, sizeof(full), LEAST));
    CHECK(caller.it.size == sizeof(first) && caller.it.a == 3 && caller.it.b == 4);
    CHECK(caller.behind[0] == 77 && caller.behind[1] == 77);
}

static void newer_caller(void)
{
    second caller = {sizeof(caller), 1, 2, 0, 0};
    first library = {0}, full = {sizeof(full), 3, 4};

    CHECK(weft_sized_read(&library, sizeof(library), &caller, LEAST));
    CHECK(library.size == sizeof(library) && library.a == 1 && library.b == 2);
    caller.d = 1;
    CHECK(!weft_sized_read(&library, sizeof(library), &caller, LEAST));
    CHECK(weft_sized_write(&caller, &full, sizeof(full), LEAST));
    CHECK(caller.size == sizeof(caller) && caller.a == 3 && caller.b == 4 && !caller.c && !caller.d);
}

static void no_caller(void)
{
    static const size_t sizes[] = {0, LEAST - 1, 5000, (size_t)-1};
    second library = {.a = 7}, caller = {0};

    CHECK(!weft_sized_read(&library, sizeof(library), NULL, LEAST));
    for (int i = 0; i < 4; i++) {
        caller.size = sizes[i];
        CHECK(!weft_sized_fits(&caller, LEAST));
        CHECK(!weft_sized_read(&library, sizeof(library), &caller, LEAST));
        CHECK(!weft_sized_write(&caller, &library, sizeof(library), LEAST) && caller.a == 0);
    }
    CHECK_INT(library.a, 7);
}

/* A new struct: never more than the room it has. */
static void fresh(void)
{
    unsigned char room[sizeof(second) + 8];
    const second full = {sizeof(full), 3, 4, 5, 6};

    for (size_t size = 0; size <= sizeof(second); size++) {
        memset(room, 77, sizeof(room));
        weft_sized_init(room, size, &full, sizeof(full), LEAST);
        for (size_t i = size; i < sizeof(room); i++)
            CHECK_INT(room[i], 77);
        CHECK(size < LEAST || (memcmp(room, &size, sizeof(size)) == 0 && room[sizeof(size)] == 3));
    }
    weft_sized_init(NULL, sizeof(second), &full, sizeof(full), LEAST);
}

int main(void)
{
    older_caller();
    newer_caller();
    no_caller();
    fresh();
    return check_report("core sized");
}
