//! A libtorch that finds its CUDA part although that is loaded after it, and how it is set up: without a GPU, by
//! a library that registers what the CUDA part does. In a process of its own, since libtorch asks once.

#![allow(unsafe_code, reason = "calls a library that is made here")]
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "this is a test")]

use std::path::Path;
use std::process::Command;

use forebay_udf::runtime::torch;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

#[test]
fn cuda_is_found_after_libtorch_is_loaded() {
    let libtorch = torch::info().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let Some(fake) = compile(&libtorch.library_path, folder.path()) else { return };
    // SAFETY: its initializers register a class with libtorch, which is loaded.
    let fake = unsafe { Library::open(Some(&fake), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
    let says = |name: &str| {
        type Says = unsafe extern "C" fn() -> bool;
        // SAFETY: the functions of fake.cpp have this signature.
        unsafe { fake.get::<Says>(name.as_bytes()).unwrap()() }
    };
    assert!(says("is_found"), "libtorch was asked for CUDA before it could be loaded");
    assert!(!says("rounds_fp32"), "fp32 is TF32 on a GPU");
    assert!(!says("plans_attention"), "cuDNN makes a plan for each size of a batch");
    // It registered a thing that libtorch keeps.
    std::mem::forget(fake);
}

/// The library, if there is a compiler and there are libtorch's headers.
fn compile(libtorch: &Path, folder: &Path) -> Option<std::path::PathBuf> {
    let include = libtorch.ancestors().nth(2)?.join("include");
    if !include.join("ATen/Context.h").exists() || Command::new("c++").arg("-v").output().is_err() {
        eprintln!("skipped: there is no C++ compiler, or no headers in {}", include.display());
        return None;
    }
    let library = folder.join("libfake_cuda.so");
    let made = Command::new("c++")
        .args(["-std=c++17", "-O0", "-fPIC", "-shared", "-w", "-I"])
        .arg(&include)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/fake.cpp"))
        .args(["-Wl,--unresolved-symbols=ignore-all", "-o"])
        .arg(&library)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(library)
}
