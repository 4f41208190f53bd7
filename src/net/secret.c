#include "net/secret.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static uint64_t turn(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

static void mix(uint64_t v[4], int rounds)
{
    for (; rounds > 0; rounds--) {
        v[0] += v[1];
        v[1] = turn(v[1], 13) ^ v[0];
        v[0] = turn(v[0], 32);
        v[2] += v[3];
        v[3] = turn(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = turn(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = turn(v[1], 17) ^ v[2];
        v[2] = turn(v[2], 32);
    }
}

uint64_t weft_secret_code(const weft_secret *secret, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t v[4] = {secret->key[0] ^ 0x736f6d6570736575u, secret->key[1] ^ 0x646f72616e646f6du,
                     secret->key[0] ^ 0x6c7967656e657261u, secret->key[1] ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)bytes << 56;

    for (size_t left = bytes; left >= sizeof(word); left -= sizeof(word), at += sizeof(word)) {
        memcpy(&word, at, sizeof(word));
        v[3] ^= word;
        mix(v, 2);
        v[0] ^= word;
    }
    for (size_t i = 0; i < bytes % sizeof(word); i++)
        last |= (uint64_t)at[i] << 8 * i;
    v[3] ^= last;
    mix(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    mix(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

weft_secret weft_secret_of(const char *text)
{
    static const weft_secret first = {{0x77656674, 1}}, second = {{0x77656674, 2}};
    size_t bytes = strlen(text);

    return (weft_secret){{weft_secret_code(&first, text, bytes), weft_secret_code(&second, text, bytes)}};
}

bool weft_random(void *into, size_t bytes)
{
    char *at = into;

    while (bytes > 0) {
        ssize_t got = getrandom(at, bytes, 0);

        if (got < 0 && errno != EINTR)
            return false;
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}
