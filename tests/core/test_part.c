/* Parts cover the extent without gap or overlap, differ by at most one, and weft_part_of inverts them. */
#include "core/part.h"
#include "support/check.h"

int main(void)
{
    for (int64_t extent = 0; extent < 70; extent++) {
        for (int64_t parts = 1; parts < 12; parts++) {
            int64_t next = 0;

            for (int64_t i = 0; i < parts; i++) {
                weft_span span = weft_part(extent, parts, i);

                CHECK_INT(span.begin, next);
                CHECK(span.count == extent / parts || span.count == extent / parts + 1);
                next += span.count;
                for (int64_t x = span.begin; x < next; x++)
                    CHECK_INT(weft_part_of(extent, parts, x), i);
            }
            CHECK_INT(next, extent);
        }
    }
    CHECK_INT(weft_part((int64_t)5 << 40, 3, 2).count, ((int64_t)5 << 40) / 3);
    return check_report("part");
}
