#include "api/hold.h"

#include "group/enter.h"
#include "run/cpu/executor.h"
#include "run/gpu.h"
#include "symm/symm.h"

void weft_hold(weft_group *group)
{
    group->holders++;
}

static void go_when_free(weft_group *group)
{
    if (group->holders > 0 || !group->freed)
        return;
    weft_executor_detach(group);
    if (!group->world->foreign) /* a driver does not work in a child of fork */
        weft_gpu_detach(group);
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
