#include "team.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#define YIELD() sched_yield()
#else
#define YIELD() ((void)0)
#endif
#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() ((void)0)
#endif

/* Multiplications below which one thread is faster than several. */
#define ENOUGH_WORK 16384

/* Looks at a meeting before the processor is offered to others: about 50 microseconds, longer than shares differ by. */
#define LOOKS 2000

/* The entry points of the OpenMP runtime that torch brings, found by name when the library is loaded. Linking against
 * OpenMP would give a packaged library a second runtime, with threads of its own that compete with torch's. */
typedef void (*parallel_function)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
typedef int (*number_function)(void);

static parallel_function run_parallel;
static number_function thread_number, thread_count, most_threads;

/* Where members wait for one another. Both numbers change hands between processors: each has a cache line. */
struct meeting {
    _Alignas(64) int64_t arrived;
    _Alignas(64) int64_t round;
};

struct call {
    share_function share;
    const void *job;
    struct meeting meeting;
};

/* Pass four null pointers for a team of one. */
void genx_set_team(parallel_function parallel, number_function number, number_function count, number_function most)
{
    run_parallel = parallel;
    thread_number = number;
    thread_count = count;
    most_threads = most;
}

static void run_share(void *data)
{
    struct call *call = data;
    const struct member me = {thread_number(), thread_count(), &call->meeting};
    call->share(call->job, &me);
}

int64_t team_size(void) { return run_parallel ? most_threads() : 1; }

void team_run(share_function share, const void *job, int64_t work)
{
    struct call call = {share, job, {0, 0}};
    if (run_parallel && work >= ENOUGH_WORK) {
        run_parallel(run_share, &call, (unsigned)team_size(), 0);
    } else {
        const struct member alone = {0, 1, &call.meeting};
        share(job, &alone);
    }
}

void team_wait(const struct member *me)
{
    struct meeting *meeting = me->meeting;
    if (me->count == 1)
        return;
    const int64_t round = __atomic_load_n(&meeting->round, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&meeting->arrived, 1, __ATOMIC_ACQ_REL) == me->count) {
        __atomic_store_n(&meeting->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&meeting->round, round + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int64_t looks = 0; __atomic_load_n(&meeting->round, __ATOMIC_ACQUIRE) == round; looks++)
        if (looks < LOOKS)
            PAUSE();
        else
            YIELD();
}

void team_share(int64_t count, const struct member *me, int64_t *first, int64_t *last)
{
    *first = count * me->index / me->count;
    *last = count * (me->index + 1) / me->count;
}
