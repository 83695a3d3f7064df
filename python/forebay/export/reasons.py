"""Turns what PyTorch raises into one line: which module failed, and why."""

import re

import torch

# What a model's code may raise while it is traced or run.
_LENGTH = 300
_PYTHON_CALL = re.compile(r"Could not export Python function call '(\w+)'")
# A module's class in a frame of TorchScript: `code/__torch__/…/modeling_bert.py`, below `class BertLayer`.
_CLASS = re.compile(r"^class (\w+)\(Module\)", re.MULTILINE)


def place_of(error: BaseException, root: torch.nn.Module | None = None) -> str:
    """The innermost module that was being called, as ` in BertLayer (encoder.layer.0)`; the name is its place
    below `root`. Nothing if there was none."""
    innermost, frame = None, error.__traceback__
    while frame is not None:
        caller = frame.tb_frame.f_locals.get("self")
        if isinstance(caller, torch.nn.Module) and caller is not root:
            innermost = caller
        frame = frame.tb_next
    if innermost is None:
        return ""
    names = root.named_modules() if root is not None else ()
    name = next((name for name, part in names if part is innermost), "")
    return f" in {type(innermost).__name__} ({name})" if name else f" in {type(innermost).__name__}"


def reason_of(error: BaseException) -> str:
    """Why, in one line without frames of a stack."""
    text = str(error).strip()
    if call := _PYTHON_CALL.search(text):
        return f"it calls {call[1]}, code of Python that TorchScript cannot hold"
    if "TorchScript interpreter" in text or "Traceback of TorchScript" in text:
        return _reason_of_script(text)
    # Some errors list Python's frames below what they say.
    lines = [line for line in text.partition("\nAt:\n")[0].splitlines() if line.strip()]
    said = lines[0] if lines else type(error).__name__
    return _short(said)


def _reason_of_script(text: str) -> str:
    said = [line for line in text.splitlines() if re.match(r"(\w+\.)*\w*(Error|Exception):", line)]
    reason = re.sub(r"^(RuntimeError: )+", "", said[-1]) if said else "it fails when it runs"
    classes = _CLASS.findall(text)
    return _short(f"in {classes[-1]}: {reason}" if classes else reason)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"
