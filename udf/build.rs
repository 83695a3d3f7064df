//! Builds `libforebay_torch.so`, the C interface between `tch` and libtorch, and a stub of the
//! same symbols to link with.
//!
//! Linking libtorch into the executable would cost every start half a second (400 MB to map and
//! relocate), even for `SELECT 1`, and would refuse to start where libtorch is missing. So the
//! executable links trampolines (`stub.s`: one indirect jump per function through a table) and
//! `runtime/torch/library.rs` fills the table from the shared library when the first model is
//! loaded. `torch-sys` is built with `doc-only`, its switch for "declare, but do not link".

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LIBTORCH_VERSION: &str = "2.11.0";
const SHIM: &str = "src/runtime/torch/shim.cpp";

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={SHIM}");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let libtorch = find_libtorch()?;
    let library = build_library(&libtorch, &find_torch_sys()?, &out)?;
    build_stub(&exported_functions(&library)?, &out)?;
    println!("cargo:rustc-env=FOREBAY_TORCH_LIBRARY={}", library.display());
    Ok(())
}

/// The libtorch folder named by `LIBTORCH` (`.cargo/config.toml` sets it), links resolved.
fn find_libtorch() -> Result<PathBuf> {
    let named =
        env::var("LIBTORCH").map_err(|_| "LIBTORCH is not set: build inside the checkout")?;
    let folder = fs::canonicalize(&named)
        .map_err(|e| format!("no libtorch at {named} ({e}): run `make setup` first"))?;
    let version = fs::read_to_string(folder.join("build-version"))?;
    if version.trim().split('+').next() != Some(LIBTORCH_VERSION) {
        return Err(format!(
            "libtorch at {} is {}, expected {LIBTORCH_VERSION}: run `make setup`",
            folder.display(),
            version.trim()
        )
        .into());
    }
    Ok(folder)
}

/// The source folder of the `torch-sys` crate, wherever cargo keeps it.
fn find_torch_sys() -> Result<PathBuf> {
    let metadata = Command::new(env::var("CARGO")?)
        .args(["metadata", "--format-version=1", "--offline", "--locked"])
        .arg("--filter-platform")
        .arg(env::var("TARGET")?)
        .output()?;
    if !metadata.status.success() {
        return Err(String::from_utf8_lossy(&metadata.stderr).into());
    }
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)?;
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "torch-sys")
        .and_then(|package| package["manifest_path"].as_str())
        .ok_or("cargo metadata lists no package torch-sys")?;
    Ok(Path::new(manifest).with_file_name("libtch"))
}

/// Compiles torch-sys's C interface and our shim into one shared library beside libtorch's path.
fn build_library(libtorch: &Path, torch_sys: &Path, out: &Path) -> Result<PathBuf> {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .pic(true)
        .warnings(false)
        .cargo_metadata(false)
        // Thin wrappers: a higher level costs minutes and buys nothing.
        .opt_level(0)
        .debug(false)
        .std("c++17")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .file(torch_sys.join("torch_api.cpp"))
        .file(torch_sys.join("torch_api_generated.cpp"))
        .file(SHIM);
    let objects = build.compile_intermediates();
    let library = out.join("libforebay_torch.so");
    let lib = libtorch.join("lib");
    let status = build
        .get_compiler()
        .to_command()
        .arg("-shared")
        .arg("-o")
        .arg(&library)
        .args(objects)
        .arg(format!("-L{}", lib.display()))
        .args(["-ltorch_cpu", "-lc10"])
        .arg(format!("-Wl,-rpath,{}", lib.display()))
        .status()?;
    if !status.success() {
        return Err(format!("linking {} failed", library.display()).into());
    }
    Ok(library)
}

/// The C functions that the library defines.
fn exported_functions(library: &Path) -> Result<Vec<String>> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library)
        .output()?;
    let functions: Vec<String> = String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (name, kind) = (words.next()?, words.next()?);
            // C++ names are mangled; stb_image comes along with torch-sys and is not wanted;
            // the tch_ functions are callbacks that torch-sys defines on the Rust side.
            let wanted = !["_", "stbi", "tch_"].iter().any(|other| name.starts_with(other));
            (kind == "T" && wanted).then(|| name.to_owned())
        })
        .collect();
    if functions.is_empty() {
        return Err(format!("{} defines no functions", library.display()).into());
    }
    Ok(functions)
}

/// One trampoline per function, a table of their targets and a table of their names.
fn build_stub(functions: &[String], out: &Path) -> Result<()> {
    let jump: fn(usize) -> String = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => |i| format!("jmp *forebay_torch_table+{}(%rip)", 8 * i),
        "aarch64" => |i| {
            format!(
                "adrp x16, forebay_torch_table+{0}\n ldr x16, [x16, #:lo12:forebay_torch_table+{0}]\n br x16",
                8 * i
            )
        },
        other => return Err(format!("no libtorch trampolines for {other}").into()),
    };
    let mut asm = String::from(".text\n");
    for (i, name) in functions.iter().enumerate() {
        writeln!(asm, ".globl {name}\n.type {name},@function\n{name}:\n {}", jump(i))?;
    }
    asm.push_str(".section .rodata\n");
    for (i, name) in functions.iter().enumerate() {
        writeln!(asm, ".Lname{i}: .asciz \"{name}\"")?;
    }
    writeln!(
        asm,
        ".balign 8\n.globl forebay_torch_count\nforebay_torch_count: .quad {}",
        functions.len()
    )?;
    asm.push_str(".section .data.rel.ro,\"aw\"\n.balign 8\n.globl forebay_torch_names\nforebay_torch_names:\n");
    for i in 0..functions.len() {
        writeln!(asm, " .quad .Lname{i}")?;
    }
    asm.push_str(".data\n.balign 8\n.globl forebay_torch_table\nforebay_torch_table:\n");
    for _ in functions {
        asm.push_str(" .quad abort\n");
    }
    asm.push_str(".section .note.GNU-stack,\"\",@progbits\n");
    let source = out.join("stub.s");
    fs::write(&source, asm)?;
    cc::Build::new().file(&source).cargo_metadata(false).compile("forebay_torch_stub");
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static:+whole-archive=forebay_torch_stub");
    Ok(())
}
