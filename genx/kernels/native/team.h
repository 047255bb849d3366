/* The threads that share an operation: torch's own, so that torch.set_num_threads governs both. */
#ifndef GENX_TEAM_H
#define GENX_TEAM_H

#include <stdint.h>

struct meeting;

/* One of the threads that work on an operation. */
struct member {
    int64_t index, count; /* 0 <= index < count */
    struct meeting *meeting;
};

/* One member's share of a job. Every member must come to each team_wait of it. */
typedef void (*share_function)(const void *job, const struct member *me);

/* Run `share` once for each member, and return when all are done. `work` is about how many multiplications the job has:
 * a small one is done by the caller alone, for waking others would take longer. */
void team_run(share_function share, const void *job, int64_t work);

/* The most members that a team of the calling thread can have. */
int64_t team_size(void);

/* Wait until every member has come here; what each wrote before is then seen by all. */
void team_wait(const struct member *me);

/* The part [*first, *last) of `count` units that falls to a member. */
void team_share(int64_t count, const struct member *me, int64_t *first, int64_t *last);

#endif
