/* The smallest program that needs both the header and the library: prints the version. */
#include <stdio.h>
#include <weft/weft.h>

int main(void)
{
    puts(weft_version());
    return 0;
}
