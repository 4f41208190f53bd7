/* Parts of an extent, and matrices of a batch. Parts cover the extent without gap or overlap, differ by at
 * most one element or granule, and weft_part_of inverts those of elements. */
#include "core/part.h"
#include "support/check.h"

/* Element by element. */
static bool overlaps(int64_t rows, int64_t cols, int64_t ld, int64_t batch, int64_t stride)
{
    unsigned char taken[256] = {0};

    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                if (taken[b * stride + i * ld + j]++)
                    return true;
    return false;
}

static void check_overlaps(void)
{
    for (int64_t rows = 0; rows < 4; rows++)
        for (int64_t cols = 0; cols < 5; cols++)
            for (int64_t ld = cols ? cols : 1; ld < 14; ld++)
                for (int64_t batch = 0; batch < 5; batch++)
                    for (int64_t stride = 1; stride < 40; stride++) {
                        bool expected = overlaps(rows, cols, ld, batch, stride);

                        CHECK(weft_batch_overlaps(rows, cols, ld, batch, stride) == expected);
                        CHECK(weft_batch_overlaps(rows, cols, ld, batch, -stride) == expected);
                    }
}

int main(void)
{
    check_overlaps();
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
    for (int64_t extent = 0; extent < 50; extent++) {
        for (int64_t granule = 0; granule < 60; granule += granule < 8 ? 1 : 17) {
            int64_t parts = 1 + extent % 7, step = granule > 1 ? granule : 1, next = 0;

            for (int64_t i = 0; i < parts; i++) {
                weft_span span = weft_part_granular(extent, granule, parts, i);

                CHECK_INT(span.begin, next);
                next += span.count;
                CHECK(next % step == 0 || next == extent);
                CHECK(span.count <= weft_part_granular(extent, granule, parts, 0).count);
                CHECK(span.count + step > weft_part_granular(extent, granule, parts, 0).count - step);
            }
            CHECK_INT(next, extent);
        }
    }
    CHECK_INT(weft_part_granular(100, 32, 2, 1).begin, 64);
    CHECK_INT(weft_part_granular(100, 32, 2, 1).count, 36);
    CHECK_INT(weft_part_granular(INT64_MAX, INT64_MAX - 1, 2, 1).count, 1);
    CHECK_INT(weft_part_granular(100, 32, 2, 2).count, 0);
    CHECK_INT(weft_part((int64_t)5 << 40, 3, 2).count, ((int64_t)5 << 40) / 3);
    return check_report("part");
}
