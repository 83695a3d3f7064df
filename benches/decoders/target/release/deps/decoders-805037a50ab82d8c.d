/work/main/benches/decoders/target/release/deps/decoders-805037a50ab82d8c.d: src/main.rs

/work/main/benches/decoders/target/release/deps/decoders-805037a50ab82d8c: src/main.rs

src/main.rs:
