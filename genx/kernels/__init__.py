"""Faster ways to do what the core does, chosen when a model is loaded, never required."""

from genx.kernels.attach import Attached, attach

__all__ = ["Attached", "attach"]
