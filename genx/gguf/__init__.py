"""What a GGUF file says in its header: facts, tensors, tokenizer. No torch, no numpy, and no weight is read.

header          the bytes of the header -> metadata and where each tensor lies, trusting no count in it
parts           a model in several files -> one header
element_types   the ways in which a tensor's values are packed
names           llama.cpp's names of architectures and sizes, and Hugging Face's
tokenizer       the metadata's vocabulary -> what tokenizer.json and tokenizer_config.json would hold
"""
