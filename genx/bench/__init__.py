"""Timed runs -> records. Prints nothing.

A sweep (`plan`) is measured point by point (`measure`), each in a process of its own (`process`, `worker`) by an engine
(`engines`): genx's own loop, or a peer on the same tokens. `timing` says what counts as what, `estimates` what the
repeats say together, `limits` what the machine allows, `records` how it is written down.
"""
