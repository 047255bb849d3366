"""The types of element that GGUF tensors have: how many values make a block, and how many bytes that block takes.

Source: ggml, ggml/include/ggml.h (ggml_type) and ggml/src/ggml-common.h (the blocks).
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class ElementType:
    """One type of element.

    Attributes:
        name: ggml's, such as Q4_1.
        values: in a block; the fastest dimension of a tensor is a whole number of blocks.
        size: bytes of a block.
    """

    name: str
    values: int
    size: int


# By ggml's number. Types that nothing writes any more, and integers, are left out.
ELEMENT_TYPES: Mapping[int, ElementType] = {
    0: ElementType("F32", 1, 4),
    1: ElementType("F16", 1, 2),
    2: ElementType("Q4_0", 32, 18),
    3: ElementType("Q4_1", 32, 20),
    6: ElementType("Q5_0", 32, 22),
    7: ElementType("Q5_1", 32, 24),
    8: ElementType("Q8_0", 32, 34),
    10: ElementType("Q2_K", 256, 84),
    11: ElementType("Q3_K", 256, 110),
    12: ElementType("Q4_K", 256, 144),
    13: ElementType("Q5_K", 256, 176),
    14: ElementType("Q6_K", 256, 210),
    16: ElementType("IQ2_XXS", 256, 66),
    17: ElementType("IQ2_XS", 256, 74),
    18: ElementType("IQ3_XXS", 256, 98),
    19: ElementType("IQ1_S", 256, 50),
    20: ElementType("IQ4_NL", 32, 18),
    21: ElementType("IQ3_S", 256, 110),
    22: ElementType("IQ2_S", 256, 82),
    23: ElementType("IQ4_XS", 256, 136),
    28: ElementType("F64", 1, 8),
    29: ElementType("IQ1_M", 256, 56),
    30: ElementType("BF16", 1, 2),
    34: ElementType("TQ1_0", 256, 54),
    35: ElementType("TQ2_0", 256, 66),
    39: ElementType("MXFP4", 32, 17),
}

BLOCK_FORMATS: Mapping[str, str] = {"Q8_0": "int8", "Q5_0": "int8", "Q4_0": "int4", "Q4_1": "int4"}
"""Types whose blocks genx computes with, and the name of the format that it holds them in."""
