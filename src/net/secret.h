/*
 * Proving that one knows a secret without sending it: SipHash-2-4 under a key made of the secret's text, over
 * something that the other end chose.
 */
#ifndef WEFT_NET_SECRET_H
#define WEFT_NET_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct weft_secret {
    uint64_t key[2];
} weft_secret;

weft_secret weft_secret_of(const char *text);

/* A code of the bytes that only holders of the secret can make. */
uint64_t weft_secret_code(const weft_secret *secret, const void *data, size_t bytes);

/* False when the system has no random bytes. */
bool weft_random(void *into, size_t bytes);

#endif
