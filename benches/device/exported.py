"""The same encoder as sentence-transformers has it, and as the exporter makes a package of it."""

import os
import subprocess
import sys
from pathlib import Path

import peers
from checks import Bed
from models import HEADS, INNER, LAYERS, VOCABULARY, WIDTH

NAME = "compiled"
EXPORTER = Path(__file__).resolve().parents[2] / "python"
# The exporter compiles for every device and precision, which takes minutes; one is measured.
ONE_TARGET = """
import sys
from forebay.export import command, compiled
compiled.targets = lambda held: [compiled.Target(sys.argv[1], sys.argv[2])]
sys.exit(command.main(sys.argv[3:]))
"""


def sentence_encoder(bed: Bed, precision: str) -> object:
    """A model of the shape of ours, whose weights are random too."""
    from sentence_transformers import SentenceTransformer, models
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = bed.inputs.folder / "bert"
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 256}
    file = str(bed.inputs.tokenizer)
    PreTrainedTokenizerFast(tokenizer_file=file, **special).save_pretrained(folder)
    shape = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = BertConfig(vocab_size=VOCABULARY, intermediate_size=INNER, **shape)
    kind = peers.KINDS[precision]
    BertModel(config).to(kind).save_pretrained(folder)
    words = models.Transformer(str(folder), model_kwargs={"dtype": kind})
    parts = [words, models.Pooling(WIDTH), models.Normalize()]
    return SentenceTransformer(modules=parts, device=bed.device)


def package(bed: Bed, precision: str) -> Path:
    """The package, with native code for the device in one precision; made once."""
    place, source = bed.models.folder / NAME, bed.inputs.folder / "sentences"
    if place.exists():
        return place
    sentence_encoder(bed, "fp32").save(str(source))
    about = ["--name", NAME, "--license", "Apache-2.0", "--compile"]
    start = [sys.executable, "-c", ONE_TARGET, bed.device, precision]
    command = [*start, "--source", str(source), "--output", str(place), *about]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(EXPORTER)},
        capture_output=True,
        text=True,
        timeout=max(1.0, bed.forebay.left),
    )
    if done.returncode != 0:
        raise RuntimeError(f"the export ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return place
