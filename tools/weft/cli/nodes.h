/* `--nodes N` or `--nodes 3+5`: on which node each rank is, in blocks. */
#ifndef WEFT_CLI_NODES_H
#define WEFT_CLI_NODES_H

#include <stdint.h>

/*
 * Sets domain[0 .. world) from the text of the flag: a number of nodes that share the ranks evenly, or the
 * ranks of each. NULL (no flag) is one node. Returns what is wrong with it, or NULL.
 */
const char *nodes_parse(const char *text, int world, int32_t *domain);

#endif
