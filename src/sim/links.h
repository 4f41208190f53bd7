/*
 * Links: who waits for whose bytes. Every port on a transfer's way is a queue that serves bytes in the
 * order their transfers began, at the port's rate; a transfer is over when the last byte has left every
 * queue, plus the latency of its way. Ports do not wait for one another, so a busy far end never idles a
 * near one; that is what many small packets of several transfers amount to.
 */
#ifndef WEFT_SIM_LINKS_H
#define WEFT_SIM_LINKS_H

#include "sim/model.h"

typedef struct links {
    const model *m;
    double *inside;  /* when each port inside nodes is free */
    double *network; /* [rank][out, in] */
} links;

weft_status links_open(links *l, const model *m, weft_error_text *error);
void links_close(links *l);

/* Sends at `now`; returns when the last byte is there, and the latency in it. */
double links_send(links *l, const model_transfer *transfer, double now, double *latency);

/* From a post on one rank to a wait on another that sees it. */
double links_flag_ns(const model *m, int from, int to);

#endif
