"""Stories packed into rows of one length, for training and for measuring."""

from collections.abc import Iterable, Iterator

import torch
from tokenizers import Tokenizer
from torch import Tensor

from storyteller.tokenizer import END


class Stories:
    """Stories as token ids, each from its END at the start to the END after it."""

    def __init__(self, texts: Iterable[str], tokenizer: Tokenizer) -> None:
        end = tokenizer.token_to_id(END)
        assert end is not None
        self.ids: list[list[int]] = [[*encoding.ids, end] for encoding in tokenizer.encode_batch(list(texts))]

    def packed(self, length: int, seed: int) -> Iterator[Tensor]:
        """Rows [length + 1] of all stories in the order of the seed; two share the END between them.

        A row starts at the start of a story. The story that its end cuts starts the next row again, so that each is
        seen whole; what is longer than a row is cut.
        """
        order = torch.randperm(len(self.ids), generator=torch.Generator().manual_seed(seed)).tolist()
        row: list[int] = []
        for number in order:
            story = self.ids[number]
            row = row[:-1] + story
            if len(row) > length:
                yield torch.tensor(row[: length + 1])
                row = [] if len(row) == len(story) or len(row) == length + 1 else story[:]
        # What is left fills no row and is not used.
