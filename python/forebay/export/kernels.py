"""How the weights of convolutions lie in memory."""

import torch


def lay_out_kernels(module: torch.nn.Module) -> None:
    """As convolutions want their weights, which otherwise are copied for each batch; and where a CPU has no such
    numbers, those of 16 bits take five times as long."""
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
