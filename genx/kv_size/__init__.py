"""The KV-cache calculator: a configuration becomes a list of layers, and a list of layers becomes bytes.

    source    a config.json, a checkpoint folder, a GGUF header, a preset, a hub id or flags -> a mapping
    fields    the mapping -> named sizes, each with the place it came from
    layers    the sizes -> one `Layer` a cache, for every architecture the same kind of record
    dtypes    what one key or value vector takes, scales included
    engines   layers -> bytes, by the rule of one engine; `ideal` is the floor
    solve     the same function backwards: what fits into this memory
    report    plain data for tables, JSON and CSV

All arithmetic is on whole numbers. Nothing here imports torch, and nothing reads a tensor.
"""
