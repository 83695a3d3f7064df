/work/main/benches/decoders/target/release/deps/turbojpeg_sys-96cb543ca6167bdb.d: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/turbojpeg-sys-1.2.0/src/lib.rs /work/main/benches/decoders/target/release/build/turbojpeg-sys-a0649f67e0c74592/out/bindings.rs

/work/main/benches/decoders/target/release/deps/libturbojpeg_sys-96cb543ca6167bdb.rlib: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/turbojpeg-sys-1.2.0/src/lib.rs /work/main/benches/decoders/target/release/build/turbojpeg-sys-a0649f67e0c74592/out/bindings.rs

/work/main/benches/decoders/target/release/deps/libturbojpeg_sys-96cb543ca6167bdb.rmeta: /root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/turbojpeg-sys-1.2.0/src/lib.rs /work/main/benches/decoders/target/release/build/turbojpeg-sys-a0649f67e0c74592/out/bindings.rs

/root/.cargo/registry/src/index.crates.io-1949cf8c6b5b557f/turbojpeg-sys-1.2.0/src/lib.rs:
/work/main/benches/decoders/target/release/build/turbojpeg-sys-a0649f67e0c74592/out/bindings.rs:

# env-dep:OUT_DIR=/work/main/benches/decoders/target/release/build/turbojpeg-sys-a0649f67e0c74592/out
