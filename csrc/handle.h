/* handle.h - an open box, for the files of the agent's side. */
#ifndef TASKD_HANDLE_H
#define TASKD_HANDLE_H

#include "region.h"

#include <pthread.h>

struct taskd_handle {
    struct td_box *box;
    pthread_mutex_t commanding;
    _Atomic int cancelled;
};

#endif
