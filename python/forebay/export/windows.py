"""Contexts that are longer than what a model takes, cut into windows that overlap, as tokenizers cut them.

transformers' question answering tokenizes with `truncation="only_second"`, a `stride` and
`return_overflowing_tokens`: each window has the whole question, and as much of the context as then fits. Here
the same is done with tokens that are there already, in a program, for a batch of rows.
"""

from dataclasses import dataclass

import torch

# No pipeline reads more at once, or has windows share more of the context.
LONGEST, SHARED = 384, 128
# A window goes on by this share of its length at least: where a question nearly fills it, the library has a
# window for every token or two.
SLOWEST = 6


@dataclass(frozen=True)
class Windows:
    """Of a context: how long each is, and how many tokens it shares with the next."""

    length: int
    shared: int

    @classmethod
    def of(cls, tokens: int) -> "Windows":
        """Those of the pipeline for a model that takes so many tokens."""
        length = min(tokens, LONGEST)
        return cls(length, min(length // 2, SHARED))

    def places(
        self, texts: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of `[rows, tokens]`: for each window's tokens where they are in the row, and which are there at all,
        `[rows, windows, tokens]`; and which windows are, `[rows, windows]`. `texts` is 0 in the question and 1
        in the context; what is in front of the context and behind is in every window."""
        places = torch.arange(texts.shape[1], device=texts.device)
        length, count = mask.sum(dim=1), (texts == 1).sum(dim=1)
        head = torch.where(count > 0, (texts == 1).int().argmax(dim=1), length)
        tail = length - head - count
        asked = ((texts == 0) * (places + 1)).amax(dim=1)
        # The library fails for questions that leave no room; their end is left out.
        least = count.clamp(max=self.shared + 1)
        left_out = (head + tail + least - self.length).clamp(min=0) * (length > self.length)
        front = head - left_out
        room = self.length - front - tail
        step = (room - self.shared).clamp(min=max(1, self.length // SLOWEST))
        beyond = (count - room).clamp(min=0)
        windows = 1 + torch.div(beyond + step - 1, step, rounding_mode="floor")

        numbers = torch.arange(windows.max(), device=texts.device)
        is_window = numbers < windows[:, None]
        # A row of fewer windows has its last one several times.
        start = torch.minimum(numbers, windows[:, None] - 1) * step[:, None]
        held = torch.minimum(count[:, None] - start, room[:, None])
        front, left_out, head, tail, count, asked = (
            value[:, None, None] for value in (front, left_out, head, tail, count, asked)
        )
        start, held = start[:, :, None], held[:, :, None]
        used = front + held + tail
        at = torch.arange(used.max(), device=texts.device)
        in_front = at + left_out * (at >= asked - left_out)
        in_context = at - front + head + start
        behind = at - front - held + head + count
        found = torch.where(at < front, in_front, torch.where(at < front + held, in_context, behind))
        return found.clamp(max=texts.shape[1] - 1), at < used, is_window


def of_windows(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """What `[rows, tokens]` are at these places, `[rows * windows, tokens]`."""
    rows, windows, tokens = places.shape
    wide = values[:, None, :].expand(rows, windows, values.shape[1])
    return wide.gather(2, places).reshape(rows * windows, tokens)
