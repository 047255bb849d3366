#include "team.h"

/* Multiplications below which one thread is faster than several. */
#define ENOUGH_WORK 16384

/* The entry points of the OpenMP runtime that torch brings, found by name when the library is loaded. Linking against
 * OpenMP would give a packaged library a second runtime, with threads of its own that compete with torch's. */
typedef void (*parallel_function)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*number_function)(void);

static parallel_function run_parallel;
static number_function thread_number, thread_count;

struct call {
    share_function share;
    const void *job;
};

/* Pass three null pointers for a team of one. */
void genx_set_team(parallel_function parallel, number_function number, number_function count)
{
    run_parallel = parallel;
    thread_number = number;
    thread_count = count;
}

static void run_share(void *data)
{
    const struct call *call = data;
    call->share(call->job, thread_number(), thread_count());
}

void team_run(share_function share, const void *job, int64_t work)
{
    struct call call = {share, job};
    if (run_parallel && work >= ENOUGH_WORK)
        run_parallel(run_share, &call, 0, 0);
    else
        share(job, 0, 1);
}

void team_share(int64_t count, int64_t member, int64_t members, int64_t *first, int64_t *last)
{
    *first = count * member / members;
    *last = count * (member + 1) / members;
}
