# Forebay. `make` alone lists the targets.

.DEFAULT_GOAL := help
.PHONY: help setup demo test cold wheel release chaos fuzz random models bench bench-peers docs fmt clean
MAKEFLAGS += --no-print-directory

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Download libtorch, the Python environment and the demo's model (780 MB, once)
	@tools/setup all

demo: ## Build Forebay and embed 8,000 definitions in SQL
	@tools/demo.sh

test: ## Check formatting, lints, the exporter, all Rust tests and the docs
	@tools/test.sh

cold: ## Run `make demo` and `make test` as on a new machine; ARGS="demo" for one of them
	@tools/cold $(ARGS)

wheel: ## Build dist/forebay-<version>-….whl, optimised (minutes to an hour); ARGS="--binary FILE" packs one that is built
	@tools/wheel $(ARGS)

release: ## Make the wheel, an archive, a bill of materials and checksums of a commit: docs/releasing.md
	@tools/release $(ARGS)

chaos: ## Kill, pause and mislead clusters at many more moments than `make test` does
	@tools/setup libtorch
	@FOREBAY_CHAOS=long cargo test --test cluster

fuzz: ## Damage what comes from outside at random, a minute for each kind, with a new seed
	@tools/setup libtorch
	@seed=$${FOREBAY_FUZZ_SEED:-$$(date +%s)}; echo "FOREBAY_FUZZ_SEED=$$seed"; \
		FOREBAY_FUZZ_SEED=$$seed FOREBAY_FUZZ_SECONDS=60 \
		cargo test --test api -- fuzz --test-threads 1

random: ## Run ten thousand random queries around ml_predict, from a new one on
	@tools/setup libtorch duckdb
	@seed=$${FOREBAY_RANDOM_SEED:-$$(date +%s)}; echo "FOREBAY_RANDOM_SEED=$$seed"; \
		FOREBAY_RANDOM=long FOREBAY_RANDOM_SEED=$$seed cargo test --test api -- random

models: ## Export a tiny model of every tested family; write the table in docs/models.md (minutes)
	@tools/setup libtorch python
	@tools/python python/tests/export/kinds.py

bench: ## Measure the ratios that Forebay claims (an optimised build first, which takes long)
	@tools/setup libtorch python model images fixtures
	@tools/bench.sh

bench-peers: ## Measure Forebay beside Ray Data, Daft, PySpark and others (ARGS="--rounds 1 --only embed")
	@tools/setup libtorch python model peers
	@tools/bench-peers.sh $(ARGS)

docs: ## Build the API documentation
	@tools/setup libtorch
	@cargo doc --workspace --no-deps

fmt: ## Format the Rust sources
	@cargo fmt --all

clean: ## Remove build outputs; keep downloads (remove ~/.cache/forebay to drop those)
	@cargo clean
