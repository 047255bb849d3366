"""What runs a point: genx's own loop, or a peer. Each is imported only in the process that runs it."""

from genx.bench.jobs import GENX, LLAMA_CPP, Engine, Job


def open_engine(job: Job) -> Engine:
    """Load the engine of a job, with its model.

    Raises:
        GenxError: the model cannot be loaded, or the point cannot be run.
    """
    if job.engine == GENX:
        from genx.bench.engines.genx_engine import GenxEngine

        return GenxEngine(job)
    if job.engine == LLAMA_CPP:
        from genx.bench.engines.llama_cpp_engine import LlamaCppEngine

        return LlamaCppEngine(job)
    from genx.bench.engines.transformers_engine import TransformersEngine

    return TransformersEngine(job)
