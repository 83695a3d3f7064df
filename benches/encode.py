"""sentence-transformers on request, for benches/lengths.rs: one line in, one line out.

    load FILE   reads texts, one per line; answers their number
    encode      encodes them; answers the seconds and the sum of the first coordinates
"""

import sys
import time
from pathlib import Path

from sentence_transformers import SentenceTransformer


def main() -> int:
    """Answers requests until standard input ends."""
    model = SentenceTransformer(sys.argv[1], device="cpu")
    texts: list[str] = []
    for line in sys.stdin:
        request = line.split()
        if request[0] == "load":
            texts = Path(request[1]).read_text(encoding="utf-8").split("\n")
            print(len(texts), flush=True)
            continue
        start = time.perf_counter()
        vectors = model.encode(texts, batch_size=32, normalize_embeddings=True)
        seconds = time.perf_counter() - start
        print(f"{seconds} {vectors[:, 0].sum(dtype='float64')}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
