"""A reply's moments by this host's clock, where it comes from another host."""

from vllm_obs.engine.executor.commands import Reply, Sampled
from vllm_obs.engine.plan import WorkerMoments


def by_our_clock(reply: Reply, offset_ns: int) -> Reply:
    """The same reply of a rank whose clock is so far behind ours."""
    if not isinstance(reply, Sampled) or not offset_ns:
        return reply
    moments = [_shifted(each, offset_ns) for each in reply.output.moments]
    return reply._replace(output=reply.output._replace(moments=moments))


def _shifted(moments: WorkerMoments, offset_ns: int) -> WorkerMoments:
    rank, *others = moments
    return WorkerMoments(rank, *(moment + offset_ns for moment in others))
