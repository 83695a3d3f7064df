"""What the code of transformers does that a trace cannot hold, done so that it can.

A trace records calls of tensors. Loops over what an input holds, views with the strides of one length,
functions of autograd and `vmap` are lost in it, or fail. Each entry here computes the same in another way;
that it is the same is proved as for all models, by comparing packages with the library's own call.
"""

import contextlib
from collections.abc import Callable, Iterator
from unittest import mock

import torch
import transformers
from torch.nn.utils import parametrize
from transformers import masking_utils
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.models.bloom import modeling_bloom
from transformers.models.longformer import modeling_longformer
from transformers.models.rt_detr import modeling_rt_detr
from transformers.models.rt_detr_v2 import modeling_rt_detr_v2

# Of encoders with a decoder: they classify a text by what the decoder says at its last token.
_BY_END = (
    transformers.BartForSequenceClassification,
    transformers.BigBirdPegasusForSequenceClassification,
    transformers.MBartForSequenceClassification,
    transformers.MT5ForSequenceClassification,
    transformers.MvpForSequenceClassification,
    transformers.PLBartForSequenceClassification,
    transformers.T5ForSequenceClassification,
    transformers.UMT5ForSequenceClassification,
)

_SINES = (
    modeling_rt_detr.RTDetrSinePositionEmbedding,
    modeling_rt_detr_v2.RTDetrV2SinePositionEmbedding,
)


def prepare(model: torch.nn.Module) -> None:
    """Settings of the model that choose code which can be traced; results stay the same."""
    for part in list(model.modules()):
        if isinstance(part, transformers.PreTrainedModel):
            _prepare(part)
        # Weights that are computed from others at each call, as those of training are.
        for name in [*getattr(part, "parametrizations", {})]:
            parametrize.remove_parametrizations(part, name)


def _prepare(model: transformers.PreTrainedModel) -> None:
    # What decoders keep for a next token is no use here, and holds constants of one device.
    model.config.use_cache = False
    if getattr(model.config, "_experts_implementation", None) is not None:
        # Others visit the experts that the tokens of the example chose, or take one format of numbers.
        model.set_experts_implementation("batched_mm")
    if model.config.model_type == "longformer":
        model.config.onnx_export = True  # `unfold` where it otherwise takes strides.


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """While a candidate's module is called, and traced."""
    attention = modeling_longformer.LongformerSelfAttention
    with contextlib.ExitStack() as patches:
        for patch in (
            mock.patch.object(masking_utils, "_vmap_expansion_sdpa", _broadcast_masks),
            mock.patch.object(masking_utils, "TransformGetItemToIndex", contextlib.nullcontext),
            mock.patch.object(modeling_bloom.BloomGelu, "forward", _bloom_gelu),
            mock.patch.object(modeling_longformer, "len", _traced_length, create=True),
            mock.patch.object(attention, "_sliding_chunks_matmul_attn_probs_value", _longformer_values),
            *(mock.patch.object(kind, "forward", _classify_by_end) for kind in _BY_END),
            *(mock.patch.object(kind, "forward", _sine_positions) for kind in _SINES),
        ):
            patches.enter_context(patch)
        yield


def _broadcast_masks(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A mask of attention by broadcasting its indices, instead of `vmap` over each."""

    def expand(*indices: torch.Tensor) -> torch.Tensor:
        mask = function(*masking_utils._non_vmap_expansion_sdpa(*indices))
        return mask.expand(*(index.shape[0] for index in indices))

    return expand


def _bloom_gelu(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Without the function of autograd around it, which is for training."""
    return modeling_bloom.bloom_gelu_forward(x)


def _sine_positions(
    self: torch.nn.Module, width: object, height: object, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Of sides that are numbers: a constant, which the program keeps, whatever the library kept of earlier calls.
    A trace has the sides as tensors, and nothing that would tell on which device the rest is."""
    with _untraced():
        made = modeling_rt_detr.build_2d_sinusoidal_position_embedding(
            height=int(height),
            width=int(width),
            embed_dim=self.embed_dim,
            temperature=self.temperature,
            device=device,
            dtype=dtype,
        )
    return made.unsqueeze(0)


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """What is computed meanwhile is a constant of the trace."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def _traced_length(values: object) -> object:
    """In place of `len`, which makes a constant of a tensor's length."""
    return values.shape[0] if isinstance(values, torch.Tensor) else len(values)


def _longformer_values(
    self: torch.nn.Module, attn_probs: torch.Tensor, value: torch.Tensor, window_overlap: int
) -> torch.Tensor:
    """The sums of values over windows, cut out by `unfold` instead of strides of one length."""
    rows, length, heads, width = value.size()
    probabilities = attn_probs.transpose(1, 2).reshape(
        rows * heads, length // window_overlap, window_overlap, 2 * window_overlap + 1
    )
    value = value.transpose(1, 2).reshape(rows * heads, length, width)
    padded = torch.nn.functional.pad(value, (0, 0, window_overlap, window_overlap), value=-1)
    windows = padded.unfold(1, 3 * window_overlap, window_overlap).transpose(2, 3)
    context = torch.einsum("bcwd,bcdh->bcwh", self._pad_and_diagonalize(probabilities), windows)
    return context.reshape(rows, heads, length, width).transpose(1, 2)


def _classify_by_end(
    self: transformers.PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    **_: object,
) -> SequenceClassifierOutput:
    """By the last token of each row that ends a text. Their own code selects all that do, and fails on rows
    of which one has more."""
    if hasattr(self, "transformer"):
        shifted = self._shift_right(input_ids)
        states = self.transformer(input_ids, attention_mask, decoder_input_ids=shifted)[0]
    else:
        states = self.model(input_ids, attention_mask)[0]
    positions = torch.arange(1, input_ids.shape[1] + 1, device=input_ids.device)
    ends = (input_ids == self.config.eos_token_id) * attention_mask * positions
    last = ends.argmax(dim=1).reshape(-1, 1, 1).expand(-1, 1, states.shape[2])
    return SequenceClassifierOutput(logits=self.classification_head(states.gather(1, last).squeeze(1)))
