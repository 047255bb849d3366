"""One of the processes that compute a test's models together; the first writes what came out of it.

Run as a module: RANK PROCESSES STORE FOLDER..., the store being a file that is not there yet.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

import genx
from genx.core.base_model import BaseModel
from genx.core.cache import cache_nbytes
from genx.parallel.divide import divide

# Without tests.architectures, which imports transformers.
CHUNKS = (5, 1, 7)
NEW_TOKENS = 8
RESULTS = "results.pt"


def results(model: BaseModel) -> dict[str, Tensor]:
    """What both the whole model and the divided one are asked, and what of it is this process's."""
    x = torch.randint(0, model.config.vocab_size, (2, sum(CHUNKS)), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(x)
    mask[0, :4] = 0
    chunks, cache = [], model.new_cache()
    with torch.no_grad():
        for chunk in x.split(CHUNKS, dim=1):
            logits, cache = model(chunk, cache, use_cache=True)
            chunks.append(logits)
        own = (p.to_local() if isinstance(p, DTensor) else p for p in model.parameters())
        return {
            "logits": model(x)[0],
            "cached": torch.cat(chunks, dim=1),
            "masked": model(x, attention_mask=mask)[0][:, 4:],
            "greedy": model.generate(x, NEW_TOKENS, do_sample=False),
            "drawn": model.generate(x, NEW_TOKENS, do_sample=True, generator=torch.Generator().manual_seed(5)),
            "parameter bytes": torch.tensor(sum(parameter.nbytes for parameter in own)),
            "cache bytes": torch.tensor(cache_nbytes(cache)),
        }


def main(rank: int, processes: int, store: str, folders: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, processes), rank=rank, world_size=processes)
    mesh = init_device_mesh("cpu", (processes,))
    for folder in map(Path, folders):
        found = results(genx.load_model(folder, dtype=torch.float32, mesh=mesh))
        if rank == 0:
            torch.save(found, folder / RESULTS)
    in_memory = genx.load_model(folder, dtype=torch.float32)
    divide(in_memory, mesh)
    for name, tensor in results(in_memory).items():
        assert torch.equal(tensor, found[name]), name
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
