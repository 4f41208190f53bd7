#include "api/hold.h"

#include "group/enter.h"
#include "run/program.h"
#include "symm/symm.h"

void weft_hold(weft_group *group)
{
    group->holders++;
}

static void go_when_free(weft_group *group)
{
    if (group->holders > 0 || !group->freed)
        return;
    if (group->session)
        weft_program_drop_cached(group->session);
    weft_backend_of(group)->detach(group);
    weft_session_free(group);
    weft_symm_detach(group);
    weft_group_close(group);
}

void weft_hold_drop(weft_group *group)
{
    group->holders--;
    go_when_free(group);
}

void weft_hold_end(weft_group *group)
{
    weft_enter_forget(group);
    weft_group_leave(group);
    go_when_free(group);
}
