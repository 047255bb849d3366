#include "activation.h"

#include <math.h>

#include "team.h"
#include "vector.h"

INLINE floats silu(floats x) { return x / (exponential(-x) + 1.0f); }

/* x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3) is x / (1 + e^-2u). */
INLINE floats tanh_gelu(floats x)
{
    const floats u = (x + x * x * x * 0.044715f) * 0.797884561f;
    return x / (exponential(u * -2.0f) + 1.0f);
}

INLINE floats gelu(floats x)
{
    for (int lane = 0; lane < LANES; lane++)
        x[lane] = 0.5f * x[lane] * (1.0f + erff(x[lane] * 0.707106781f));
    return x;
}

INLINE floats relu(floats x) { return choose(x < splat(0.0f), splat(0.0f), x); }

INLINE floats activated(int64_t activation, floats x)
{
    return activation == SILU ? silu(x) : activation == TANH_GELU ? tanh_gelu(x) : activation == GELU ? gelu(x) : relu(x);
}

INLINE void activate_all(int64_t activation, float *values, int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_float32(values + i, activated(activation, load_float32(values + i)));
    if (i < count) {
        float rest[LANES] = {0};
        memcpy(rest, values + i, (size_t)(count - i) * sizeof *rest);
        store_float32(rest, activated(activation, load_float32(rest)));
        memcpy(values + i, rest, (size_t)(count - i) * sizeof *rest);
    }
}

void activate(int64_t activation, float *values, int64_t count)
{
    switch (activation) {
    case SILU:
        activate_all(SILU, values, count);
        break;
    case TANH_GELU:
        activate_all(TANH_GELU, values, count);
        break;
    case GELU:
        activate_all(GELU, values, count);
        break;
    case RELU:
        activate_all(RELU, values, count);
        break;
    }
}

struct activation_work {
    int64_t activation;
    float *values;
    const float *factors;
    int64_t count;
};

static void activate_share(const void *job, const struct member *me)
{
    const struct activation_work *work = job;
    int64_t first, last;
    team_share(work->count, me, &first, &last);
    activate(work->activation, work->values + first, last - first);
    for (int64_t i = first; work->factors && i < last; i++)
        work->values[i] *= work->factors[i];
}

/* Apply an activation to `values` [count] in place, and multiply with `factors` [count] unless that is null. */
void genx_activate(int64_t activation, float *values, const float *factors, int64_t count)
{
    const struct activation_work work = {activation, values, factors, count};
    team_run(activate_share, &work, count * 16);
}
