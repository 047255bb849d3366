/* The threads that share an operation: torch's own, so that torch.set_num_threads governs both. */
#ifndef GENX_TEAM_H
#define GENX_TEAM_H

#include <stdint.h>

/* One member's share of a job. */
typedef void (*share_function)(const void *job, int64_t member, int64_t members);

/* Run `share` once for each member, and return when all are done. `work` is about how many multiplications the job has:
 * a small one is done by the caller alone, for waking others would take longer. */
void team_run(share_function share, const void *job, int64_t work);

/* The part [*first, *last) of `count` units that falls to a member. */
void team_share(int64_t count, int64_t member, int64_t members, int64_t *first, int64_t *last);

#endif
