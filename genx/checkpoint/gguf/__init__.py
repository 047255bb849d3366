"""GGUF files as checkpoints: metadata -> config.json, tensors -> published names and layouts, blocks -> floats.

Importing this package imports no torch.
"""
