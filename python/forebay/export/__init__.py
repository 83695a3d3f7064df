"""Makes model packages from models of sentence-transformers, transformers and torchvision."""
