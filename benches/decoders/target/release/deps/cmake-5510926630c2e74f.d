/work/main/benches/decoders/target/release/deps/cmake-5510926630c2e74f.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cmake-0.1.58/src/lib.rs

/work/main/benches/decoders/target/release/deps/libcmake-5510926630c2e74f.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cmake-0.1.58/src/lib.rs

/work/main/benches/decoders/target/release/deps/libcmake-5510926630c2e74f.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cmake-0.1.58/src/lib.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/cmake-0.1.58/src/lib.rs:
