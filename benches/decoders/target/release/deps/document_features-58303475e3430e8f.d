/work/main/benches/decoders/target/release/deps/document_features-58303475e3430e8f.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/document-features-0.2.12/lib.rs

/work/main/benches/decoders/target/release/deps/libdocument_features-58303475e3430e8f.so: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/document-features-0.2.12/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/document-features-0.2.12/lib.rs:
