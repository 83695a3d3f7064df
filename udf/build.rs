//! Assembles the trampolines to libtorch.
//!
//! Linking libtorch into the executable would cost every start half a second (400 MB to map and
//! relocate), even for `SELECT 1`, and would refuse to start where libtorch is missing. So the
//! executable links one indirect jump per C function through a table, and `runtime/torch/library`
//! fills the table from `libforebay_torch.so`, which `tools/setup` builds, when the first model is
//! loaded. `torch-sys` is built with `doc-only`, its switch for "declare, but do not link". So
//! nothing of PyTorch is needed here.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The functions that the trampolines stand for, one per line.
const FUNCTIONS: &str = "src/runtime/torch/functions.txt";
/// What `libforebay_torch.so` is built from beside `torch-sys`.
const SOURCES: [&str; 19] = [
    "src/runtime/torch/shim.cpp",
    "src/runtime/torch/allocator.cpp",
    "src/runtime/torch/attention.h",
    "src/runtime/torch/attention.cpp",
    "src/runtime/torch/attention_kernels.h",
    "src/runtime/torch/attention_kernels.cpp",
    "src/runtime/torch/linear.h",
    "src/runtime/torch/linear.cpp",
    "src/runtime/torch/linear_blocks.h",
    "src/runtime/torch/linear_blocks.cpp",
    "src/runtime/torch/linear_kernels.h",
    "src/runtime/torch/linear_kernels.cpp",
    "src/runtime/torch/operations.h",
    "src/runtime/torch/operations.cpp",
    "src/runtime/torch/program.h",
    "src/runtime/torch/program.cpp",
    "src/runtime/torch/streams.h",
    "src/runtime/torch/streams.cpp",
    "src/runtime/torch/vectors.h",
];

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={FUNCTIONS}");
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
    }
    let list = fs::read_to_string(FUNCTIONS)?;
    println!("cargo:rustc-env=FOREBAY_TORCH_INTERFACE={}", interface(&list)?);
    let functions: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    link_trampolines(&trampolines(&functions)?)?;
    tell_of_jpeg();
    Ok(())
}

/// What executable and library must agree on: the same sources on both sides. `tools/setup` computes
/// it in the same way.
fn interface(list: &str) -> Result<String> {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(list.as_bytes());
    for source in SOURCES {
        hasher.update(&fs::read(source)?);
    }
    Ok(format!("{:08x}", hasher.finalize()))
}

/// One trampoline per function, a table of their targets and a table of their names, in assembler.
fn trampolines(functions: &[&str]) -> Result<String> {
    let jump: fn(usize) -> String = match env::var("CARGO_CFG_TARGET_ARCH")?.as_str() {
        "x86_64" => |i| format!("jmp *forebay_torch_table+{}(%rip)", 8 * i),
        "aarch64" => |i| {
            format!(
                "adrp x16, forebay_torch_table+{0}\n ldr x16, [x16, #:lo12:forebay_torch_table+{0}]\n br x16",
                8 * i
            )
        },
        other => {
            return Err(format!(
                "Forebay has no trampolines to libtorch for {other}; build it for x86_64 or aarch64"
            )
            .into());
        }
    };
    let mut asm = String::from(".text\n");
    for (i, name) in functions.iter().enumerate() {
        writeln!(asm, ".globl {name}\n.type {name},%function\n{name}:\n {}", jump(i))?;
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
    asm.push_str(".section .note.GNU-stack,\"\",%progbits\n");
    Ok(asm)
}

fn link_trampolines(asm: &str) -> Result<()> {
    let out = env::var("OUT_DIR")?;
    let source = Path::new(&out).join("trampolines.s");
    fs::write(&source, asm)?;
    cc::Build::new().file(&source).cargo_metadata(false).compile("forebay_torch_trampolines");
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static:+whole-archive=forebay_torch_trampolines");
    Ok(())
}

/// libjpeg-turbo is built without vector instructions where its assembler is missing: that is slow
/// enough to be told, while it is built and by `forebay doctor`.
fn tell_of_jpeg() {
    println!("cargo:rerun-if-env-changed=ASM_NASM");
    let is_x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    let has_jpeg = env::var_os("CARGO_FEATURE_JPEG").is_some();
    let has_assembler =
        env::var_os("ASM_NASM").is_some() || ["nasm", "yasm"].iter().any(is_on_path);
    let decoder = match (has_jpeg, is_x86 && !has_assembler) {
        (false, _) => "none: built without the cargo feature `jpeg`",
        (true, false) => "libjpeg-turbo",
        (true, true) => {
            println!(
                "cargo:warning=NASM was not found, so JPEG images will be decoded without vector \
                 instructions, slowly; install it (apt install nasm), then run `cargo clean -p \
                 turbojpeg-sys -p forebay-udf` and build again"
            );
            "libjpeg-turbo without vector instructions: NASM was missing when it was built"
        }
    };
    println!("cargo:rustc-env=FOREBAY_JPEG_DECODER={decoder}");
}

fn is_on_path(program: &&str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()))
}
