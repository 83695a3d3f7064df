"""How the weights of convolutions lie in memory."""

import torch


def lay_out_kernels(module: torch.nn.Module) -> None:
    """As convolutions want their weights, which otherwise are copied for each batch. Weights of 16 bits, on a CPU that
    does not have such numbers, are several times as slow otherwise."""
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if isinstance(weight, torch.Tensor) and weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)
