//! `forebay doctor`: what was found on this machine, what is wrong, and how to fix it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use forebay::{CatalogEntry, ForebayContext, folders};
use forebay_engine::device::Driver;
use forebay_udf::model::{RuntimeKind, packages_dir};
use forebay_udf::runtime::{onnx, torch};
use nix::sys::statvfs::statvfs;

use crate::terminal::errors;
use crate::version;
use crate::{model_cmd, on_path};

/// Less free disk than this is a problem: downloads and spills fail.
const FREE_DISK_BYTES_MIN: u64 = 1 << 30;
/// The file that describes a package.
const DESCRIPTION: &str = "model.toml";
/// Either exists where an NVIDIA driver is installed.
const DRIVER_FILES: &[&str] = &["/proc/driver/nvidia/version", "/dev/nvidiactl"];

/// Lines so far, and whether one of them is a problem.
#[derive(Default)]
struct Report {
    problem_count: usize,
}

impl Report {
    fn section(&self, title: &str) {
        println!("{title}");
    }

    fn fact(&self, name: &str, value: impl AsRef<str>) {
        println!("  {name:<12}{}", value.as_ref());
    }

    fn problem(&mut self, name: &str, problem: impl AsRef<str>, fix: impl AsRef<str>) {
        self.problem_count += 1;
        println!("  {name:<12}PROBLEM: {}", problem.as_ref());
        println!("  {:<12}fix: {}", "", fix.as_ref());
    }
}

/// Prints the report; returns the exit status: 1 if something is wrong.
pub(crate) async fn run(catalog: Option<PathBuf>) -> i32 {
    let mut report = Report::default();
    report.section("forebay");
    report.fact("version", env!("CARGO_PKG_VERSION"));
    for (name, value) in version::parts() {
        report.fact(name, value);
    }
    report.fact("executable", env::current_exe().unwrap_or_default().display().to_string());
    if let Some(problem) = on_path::problem() {
        let fix = "remove all but one, or put the folder of that one first; `python -m forebay` is \
                   that of its Python";
        report.problem("commands", problem, fix);
    }
    report.fact("jpeg", forebay_udf::feature::JPEG_DECODER);
    let catalog_folder = catalog.clone().unwrap_or_else(folders::catalog);
    let context = match model_cmd::context(catalog) {
        Ok(context) => Some(context),
        Err(error) => {
            let fix = "name another folder with --catalog or FOREBAY_CATALOG";
            report.problem("session", errors::readable(&error), fix);
            None
        }
    };
    if let Some(context) = &context {
        machine(&report, context);
    }
    libtorch(&mut report);
    onnx_runtime(&mut report, context.as_ref());
    if let Some(driver) = Driver::detect() {
        nvidia(&report, &driver);
    }
    report.section("folders");
    folder(&mut report, "catalog", &catalog_folder, "FOREBAY_CATALOG");
    folder(&mut report, "packages", &packages_dir(), "FOREBAY_CACHE");
    folder(&mut report, "spills", &env::temp_dir(), "TMPDIR");
    if let Some(context) = &context {
        models(&mut report, context);
    }
    match report.problem_count {
        0 => println!("no problems found"),
        1 => println!("1 problem found"),
        count => println!("{count} problems found"),
    }
    i32::from(report.problem_count > 0)
}

fn machine(report: &Report, context: &ForebayContext) {
    let inventory = context.devices().inventory();
    report.section("machine");
    report.fact("cores", format!("{} ({})", inventory.cpus, vector_instructions()));
    let available = available_memory().map(|bytes| format!(", {} available", ByteSize(bytes)));
    let memory = ByteSize(inventory.memory);
    report.fact("memory", format!("{memory}{}", available.unwrap_or_default()));
}

/// What libtorch's CPU kernels choose by.
fn vector_instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return "AVX-512";
        }
        if is_x86_feature_detected!("avx2") {
            return "AVX2";
        }
        "no AVX2: models will be slow"
    }
    #[cfg(not(target_arch = "x86_64"))]
    env::consts::ARCH
}

fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn libtorch(report: &mut Report) {
    report.section("libtorch");
    let info = match torch::info() {
        Ok(info) => info,
        Err(error) => {
            // The problem ends with what mends it.
            let (problem, fix) = error.problem().rsplit_once("; ").unwrap_or_default();
            return report.problem("library", problem, fix);
        }
    };
    report.fact("version", &info.version);
    report.fact("library", info.library_path.display().to_string());
    match &info.cuda {
        Ok(devices) => {
            for device in devices {
                let memory = ByteSize(device.memory_bytes);
                let free = torch::cuda_memory(device.ordinal).map(|(free, _)| ByteSize(free));
                match free {
                    Ok(free) => report.fact(
                        &format!("cuda:{}", device.ordinal),
                        format!("{}, {memory}, {free} free", device.name),
                    ),
                    Err(error) => report.problem(
                        &format!("cuda:{}", device.ordinal),
                        error.to_string(),
                        "check `nvidia-smi`, and that no other process holds the device",
                    ),
                }
            }
        }
        Err(reason) if DRIVER_FILES.iter().any(|file| Path::new(file).exists()) => {
            let fix = "until that is mended, models run on CPU cores, and device=cuda is refused";
            report.problem("cuda", reason, fix);
        }
        Err(reason) => {
            let reason = reason.split(';').next().unwrap_or(reason);
            report.fact("cuda", format!("none, so models run on CPU cores: {reason}"));
        }
    }
}

/// Missing, it is a problem for those who have a model for it.
fn onnx_runtime(report: &mut Report, context: Option<&ForebayContext>) {
    report.section("ONNX Runtime");
    let is_onnx =
        |entry: &CatalogEntry| matches!(entry.declaration.runtime, RuntimeKind::Onnx { .. });
    let models = context.and_then(|context| context.catalog().list().ok()).unwrap_or_default();
    match onnx::info() {
        Ok(info) => {
            report.fact("version", &info.version);
            report.fact("library", info.library_path.display().to_string());
        }
        Err(error) => {
            // The problem ends with what mends it.
            let (problem, fix) = error.problem().rsplit_once("; ").unwrap_or_default();
            if models.iter().any(is_onnx) || !onnx::is_missing() {
                return report.problem("library", problem, fix);
            }
            report.fact("none", format!("no ONNX model can run; {fix}"));
        }
    }
}

/// All devices of the driver, whether this process may use them or not.
fn nvidia(report: &Report, driver: &Driver) {
    report.section("NVIDIA driver");
    report.fact("version", &driver.version);
    for (at, gpu) in driver.gpus.iter().enumerate() {
        let (memory, used) = (ByteSize(gpu.memory), ByteSize(gpu.used));
        report.fact(&format!("gpu {at}"), format!("{}, {memory}, {used} in use", gpu.name));
    }
}

/// A folder that must be writable, or one that can be made.
fn folder(report: &mut Report, name: &str, path: &Path, variable: &str) {
    let shown = path.display();
    // Not made here: looking should change nothing.
    let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("/"));
    let fix = format!("make it writable, or set {variable} to another folder");
    if !existing.is_dir() {
        return report.problem(
            name,
            format!("{shown}: {} is not a folder", existing.display()),
            fix,
        );
    }
    // Permissions alone do not tell.
    if let Err(error) = tempfile::tempfile_in(existing) {
        return report.problem(name, format!("{shown} cannot be written: {error}"), fix);
    }
    let missing = if path.exists() { "" } else { "not there yet, " };
    match statvfs(existing).map(|disk| disk.blocks_available() * disk.fragment_size()) {
        Ok(free) if free < FREE_DISK_BYTES_MIN => {
            let fix = format!("free some, or set {variable} to a folder on another disk");
            report.problem(name, format!("{shown}: only {} free", ByteSize(free)), fix);
        }
        Ok(free) => report.fact(name, format!("{shown} ({missing}{} free)", ByteSize(free))),
        Err(error) => report.fact(name, format!("{shown} ({missing}free space unknown: {error})")),
    }
}

fn models(report: &mut Report, context: &ForebayContext) {
    report.section("models");
    let remedy = "remove it with `forebay model remove NAME`, then add it again";
    let catalog = context.catalog();
    for error in catalog.damaged().unwrap_or_default() {
        report.problem("damaged", error.to_string(), remedy);
    }
    let entries = match catalog.list() {
        Ok(entries) => entries,
        Err(error) => {
            return report.problem("catalog", error.to_string(), "make the folder readable");
        }
    };
    if entries.is_empty() {
        report.fact("none", "add one: forebay model add NAME FOLDER");
    }
    for entry in entries {
        model(report, &entry);
    }
}

fn model(report: &mut Report, entry: &CatalogEntry) {
    let model = &entry.declaration;
    let emulated = match model.runtime {
        RuntimeKind::Emulated { .. } => ", emulated",
        RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } | RuntimeKind::Onnx { .. } => "",
    };
    let fix = |problems: &[String]| {
        // Another description can be accepted; files that are not what theirs says cannot.
        let is_acceptable = problems.iter().all(|problem| problem.starts_with(DESCRIPTION));
        let or = if is_acceptable { "accept it as it is" } else { "export it again, then" };
        let (name, location) = (&model.name, &model.location);
        format!(
            "restore the package at {location}, or {or}: forebay model add {name} {location} --replace"
        )
    };
    match model_cmd::problems(entry) {
        Ok(problems) if problems.is_empty() => {
            let location = &model.location;
            report.fact(&model.name, format!("version {}{emulated}, {location}", model.version));
        }
        Ok(problems) => {
            report.problem(&model.name, problems.join("; "), fix(&problems));
        }
        Err(error) => {
            let problem = error.to_string();
            report.problem(&model.name, &problem, fix(std::slice::from_ref(&problem)));
        }
    }
}
