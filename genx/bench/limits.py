"""What the machine allows: the bytes and operations that a token needs, against the rates measured in the same run.

A step of decoding reads the weights once for all rows and each row's cache, and multiplies for each row; it cannot take
less than the slower of the two (Williams et al. 2009, the roofline model). What is small is left out: activations,
norms, softmax, tables of positions. No torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """What this machine was measured to do, with `threads` threads: the limit is set by its best."""

    threads: int
    read_gb_s: float
    matmul_gflop_s: dict[str, float]  # by dtype

    def flop_s(self, dtype: str) -> float:
        """Operations a second: the faster of float32's and the dtype's own, since either may do the work."""
        return 1e9 * max(self.matmul_gflop_s["float32"], self.matmul_gflop_s.get(dtype, 0.0))


@dataclass(frozen=True)
class Work:
    """What the tokens of a point need.

    Attributes:
        weight_bytes: read once a step of decoding, whatever the batch.
        cache_bytes: read by one row in a step of decoding, on average over the steps.
        decode_flop: operations of one row in a step of decoding, on average over the steps.
        prefill_flop: operations of one row in the pass over its prompt.
    """

    weight_bytes: int
    cache_bytes: int
    decode_flop: int
    prefill_flop: int

    def decode_limit_tps(self, rates: Rates, batch: int, dtype: str) -> float:
        """New tokens a second, of all rows."""
        reading = (self.weight_bytes + batch * self.cache_bytes) / (rates.read_gb_s * 1e9)
        return batch / max(reading, batch * self.decode_flop / rates.flop_s(dtype))

    def prefill_limit_tps(self, rates: Rates, batch: int, prompt_tokens: int, dtype: str) -> float:
        """Prompt tokens a second, of all rows."""
        reading = self.weight_bytes / (rates.read_gb_s * 1e9)
        return batch * prompt_tokens / max(reading, batch * self.prefill_flop / rates.flop_s(dtype))
