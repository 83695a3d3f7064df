/work/main/benches/decoders/target/release/decoders: /work/main/benches/decoders/src/main.rs
