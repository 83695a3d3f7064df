"""Makes the demo's corpus from WordNet 3.0: sql-examples/data/wordnet.parquet.

    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    python3 -m venv corpus && corpus/bin/pip install -r tools/corpus-requirements.txt
    corpus/bin/python tools/corpus.py wordnet/usr/share/wordnet

Each row is the most frequent sense of a word, by WordNet's own counts in tagged text. The words
that are tagged most often are taken, so the glosses are of everyday words; the result is the same
each time.
"""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
POSITIONS = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}
FILES = {"noun": "noun", "verb": "verb", "adjective": "adj", "adverb": "adv"}


@dataclass(frozen=True)
class Sense:
    """One word in one of its meanings."""

    word: str
    pos: str
    gloss: str
    count: int


def main() -> None:
    """Reads WordNet's database files and writes the Parquet file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "wordnet", type=Path, help="folder with data.noun, index.noun, cntlist.rev, …"
    )
    parser.add_argument("--rows", type=int, default=8000)
    parser.add_argument("--output", type=Path, default=ROOT / "sql-examples/data/wordnet.parquet")
    options = parser.parse_args()

    senses = sorted(
        read_senses(options.wordnet), key=lambda sense: (-sense.count, sense.word, sense.pos)
    )
    chosen = distinct_glosses(senses)[: options.rows]
    chosen.sort(key=lambda sense: (sense.word.lower(), sense.pos))
    table = pa.table(
        {
            "id": pa.array(range(1, len(chosen) + 1), pa.int64()),
            "word": [sense.word for sense in chosen],
            "pos": [sense.pos for sense in chosen],
            "gloss": [sense.gloss for sense in chosen],
        }
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, options.output, compression="zstd", compression_level=19)
    print(f"{options.output}: {table.num_rows} rows, {options.output.stat().st_size / 1000:.0f} kB")


def read_senses(folder: Path) -> Iterator[Sense]:
    """The first sense of each word that occurs in the tagged text, per part of speech."""
    counts = read_counts(folder / "cntlist.rev")
    for pos, suffix in FILES.items():
        glosses = read_glosses(folder / f"data.{suffix}")
        for line in database_lines(folder / f"index.{suffix}"):
            fields = line.split()
            lemma, senses = fields[0], int(fields[2])
            count = counts.get((lemma, pos), 0)
            offset = fields[-senses]
            if count and offset in glosses:
                word, gloss = glosses[offset]
                # The data file has the word in its usual spelling, if it is the synset's first.
                usual = word if word.lower() == lemma else lemma
                yield Sense(usual.replace("_", " "), pos, gloss, count)


def read_counts(path: Path) -> dict[tuple[str, str], int]:
    """How often the first sense of each word is tagged: lines of `lemma%pos:… sense count`."""
    counts: dict[tuple[str, str], int] = {}
    for line in path.read_text().splitlines():
        key, sense, count = line.split()
        lemma, _, rest = key.partition("%")
        if sense == "1":
            counts[lemma, POSITIONS[rest[0]]] = int(count)
    return counts


def read_glosses(path: Path) -> dict[str, tuple[str, str]]:
    """Per synset offset: its first word, and its definition without the example sentences."""
    glosses = {}
    for line in database_lines(path):
        fields, _, gloss = line.partition(" | ")
        offset, _, _, _, word, *_ = fields.split()
        definition = re.split(r"; ?\"|: \"", gloss, maxsplit=1)[0].strip()
        if definition and not definition.startswith('"'):
            glosses[offset] = (re.sub(r"\((a|p|ip)\)$", "", word), definition)
    return glosses


def distinct_glosses(senses: list[Sense]) -> list[Sense]:
    """The first word of each gloss: synonyms would repeat it."""
    return list({sense.gloss: sense for sense in reversed(senses)}.values())[::-1]


def database_lines(path: Path) -> Iterator[str]:
    """The lines of a WordNet file after its license, which is indented."""
    return (line for line in path.read_text().splitlines() if not line.startswith("  "))


if __name__ == "__main__":
    main()
