/*
 * Making worlds and entering them: by a launcher's announcement, by an id, as threads. However the ranks were
 * started, they end up with the same sealed memory mapped, each holding its lock in it and having written a
 * proof there that the others read: from then on nothing outside that memory is used.
 */
#ifndef WEFT_GROUP_ENTER_H
#define WEFT_GROUP_ENTER_H

#include "group/group.h"

/* Makes `size` handles of one new world whose ranks are threads of this process. */
weft_status weft_enter_threads(int size, weft_group **groups, weft_error_text *error);

/*
 * Enters the world this process was started for (group/launcher.h) and waits until every rank has. With a
 * `refusal`, here and below, this rank's arguments are no good: it comes only to end the world for the
 * others, who would wait for it, and gets no group.
 */
weft_status weft_enter_launched(const weft_error_text *refusal, weft_group **group, weft_error_text *error);

/* After the group of weft_enter_launched was left, another world may be entered. */
void weft_enter_forget(const weft_group *group);

/* A new id; and the group that the holders of one make. */
weft_status weft_enter_make_id(weft_id *id, weft_error_text *error);
weft_status weft_enter_id(const weft_id *id, int rank, int size, const weft_error_text *refusal,
                          weft_group **group, weft_error_text *error);

/* The same with an id that the ranks exchange themselves. */
weft_status weft_enter_gathered(weft_allgather_fn allgather, void *context, int rank, int size,
                                const weft_error_text *refusal, weft_group **group, weft_error_text *error);

#endif
