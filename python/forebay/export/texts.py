"""Texts that tests of encoders agree on: empty, short, long, repeated, and in many scripts."""

MIXED = (
    "",
    "a",
    "The quick brown fox jumps over the lazy dog.",
    "  leading, trailing and   inner spaces  ",
    "line one\nline two\tafter a tab",
    "Größe, naïve café, ÅNGSTRÖM, İstanbul",
    "日本語のテキストです。",
    "Привет, мир! مرحبا بالعالم שלום עולם",
    "emoji 👩‍🚀🚀 and combining e\u0301",
    "numbers 1,234.56 and 7e-3; symbols € § ± ≤",
    "[CLS] <s> </s> [MASK] spelled out",
    "The quick brown fox jumps over the lazy dog.",
    "UPPER CASE TEXT",
    "upper case text",
    "Water behind a dam waits in the forebay before it reaches the turbines.",
    "unbroken" * 40,
    "one two three four five six seven eight nine ten " * 30,
    "",
    "<|endoftext|> begins it, [PAD] and <pad> are inside, [SEP] ends it [SEP]",
)

# Every text as a query, with another one as its passage: short and long on either side.
PAIRS = tuple(zip(MIXED, (*MIXED[7:], *MIXED[:7]), strict=True))
