//! Where libtorch and the library that calls it may be.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::super::places::{Places, executable_folder, is_of_python, named};
use crate::folders;

/// The libtorch that Forebay is built for; other releases of the series 2.11 will do.
pub const LIBTORCH_VERSION: &str = "2.11.0";
/// Stands for the sources of the library that calls libtorch; see `build.rs`.
pub(super) const INTERFACE: &str = env!("FOREBAY_TORCH_INTERFACE");

/// Names the folder of libtorch's libraries, such as a Python environment's `torch/lib`.
const OVERRIDE: &str = "FOREBAY_LIBTORCH";
/// The C interface between the executable and libtorch; it comes with Forebay.
pub(super) const INTERFACE_LIBRARY: &str = "libforebay_torch.so";
pub(super) const CPU_LIBRARY: &str = "libtorch_cpu.so";

pub(super) fn of_libtorch() -> Places {
    Places::of_package(OVERRIDE, "torch/lib", cache().map(|cache| cache.join("site/torch/lib")))
}

/// Of the library that comes with Forebay.
pub(super) fn of_interface() -> Places {
    let mut folders: Vec<_> = named(OVERRIDE).into_iter().collect();
    if let Some(beside) = executable_folder() {
        let above = beside.parent().map(|above| above.join("lib"));
        folders.extend([beside].into_iter().chain(above));
    }
    folders.extend(cache().map(|cache| cache.join(format!("interface-{INTERFACE}"))));
    Places::new(folders)
}

/// What to do where libtorch is missing or is another one, for whoever started this process.
pub(super) fn remedy() -> String {
    let series = series(LIBTORCH_VERSION);
    if is_of_python() {
        return "install it: pip install 'forebay[torch]'".to_owned();
    }
    format!(
        "run `tools/setup libtorch` in Forebay's checkout, or set {OVERRIDE} to the folder torch/lib \
         of a Python environment with torch {series}"
    )
}

/// What to do where it has no CUDA part, or that lacks something.
pub(super) fn cuda_remedy() -> String {
    let series = series(LIBTORCH_VERSION);
    if is_of_python() {
        return format!(
            "install torch's build for CUDA: pip install --force-reinstall 'torch=={series}.*'"
        );
    }
    format!(
        "set {OVERRIDE} to the folder torch/lib of a Python environment with a CUDA build of torch \
         {series}"
    )
}

/// The library with the CUDA part of the libtorch that `cpu` is of.
///
/// # Errors
/// That it has none, and what to do.
pub(super) fn cuda_part(cpu: &Path) -> Result<PathBuf, String> {
    let library = cpu.with_file_name("libtorch_cuda.so");
    if library.exists() {
        return Ok(library);
    }
    let (missing, remedy) = (library.display(), cuda_remedy());
    Err(format!("this libtorch is for CPUs only ({missing} is missing); {remedy}"))
}

/// The version of the libtorch that a library is part of, as the files around it say. Both torch's
/// Python package and libtorch's archive name it, each in its way.
pub(super) fn version_beside(library: &Path) -> Option<String> {
    let root = fs::canonicalize(library).ok()?.parent()?.parent()?.to_owned();
    let of_archive = fs::read_to_string(root.join("build-version")).ok();
    let of_package = || {
        let text = fs::read_to_string(root.join("version.py")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
        Some(line.to_owned())
    };
    let version = of_archive.or_else(of_package)?;
    Some(version.trim().trim_matches(['\'', '"']).to_owned())
}

/// Whether a libtorch of this version has what Forebay was built for: releases that differ in the
/// last number or in what they were compiled for (`+cu130`) do.
pub(super) fn is_compatible(version: &str) -> bool {
    series(version) == series(LIBTORCH_VERSION)
}

/// `2.11` of `2.11.0+cpu`.
pub(super) fn series(version: &str) -> &str {
    let end = version.match_indices('.').nth(1).map_or(version.len(), |(at, _)| at);
    &version[..end]
}

/// What `tools/setup libtorch` made.
fn cache() -> Option<PathBuf> {
    Some(folders::cache()?.join(format!("libtorch-{LIBTORCH_VERSION}")))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The executable would end at the first call of one that is missing.
    #[test]
    fn the_list_of_functions_is_what_the_library_defines() {
        let library = of_interface().find(INTERFACE_LIBRARY).expect("tools/setup libtorch");
        let arguments = ["--dynamic", "--defined-only", "--format=posix"];
        let output = Command::new("nm").args(arguments).arg(library).output().unwrap();
        assert!(output.status.success());
        let symbols = String::from_utf8(output.stdout).unwrap();
        let mut defined: Vec<&str> = symbols
            .lines()
            .filter_map(|line| line.split_once(' ').filter(|(_, rest)| rest.starts_with("T ")))
            .map(|(name, _)| name)
            // C++ names are mangled; stb_image comes along with torch-sys and is not wanted; the
            // tch_ functions are callbacks that torch-sys defines on the Rust side.
            .filter(|name| !["_", "stbi", "tch_"].iter().any(|other| name.starts_with(other)))
            .collect();
        defined.sort_unstable();
        let list = include_str!("../functions.txt");
        let listed: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
        let missing: Vec<_> = defined.iter().filter(|name| !listed.contains(name)).collect();
        let extra: Vec<_> = listed.iter().filter(|name| !defined.contains(name)).collect();
        assert!(missing.is_empty() && extra.is_empty(), "add {missing:?}, remove {extra:?}");
        assert_eq!(listed, defined, "sort functions.txt");
    }

    #[test]
    fn a_libtorch_for_cpus_is_named_with_the_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = folder.path().join(CPU_LIBRARY);
        let said = cuda_part(&cpu).unwrap_err();
        assert!(
            said.contains("for CPUs only") && said.contains("CUDA build of torch 2.11"),
            "{said}"
        );
        fs::write(folder.path().join("libtorch_cuda.so"), "").unwrap();
        assert_eq!(cuda_part(&cpu), Ok(folder.path().join("libtorch_cuda.so")));
    }

    #[test]
    fn releases_of_one_series_are_compatible() {
        for version in ["2.11.0", "2.11.0+cpu", "2.11.3+cu130", "2.11"] {
            assert!(is_compatible(version), "{version}");
        }
        for version in ["2.1.1", "2.12.0", "2.110.0", "of an unknown version", ""] {
            assert!(!is_compatible(version), "{version}");
        }
    }

    #[test]
    fn a_version_is_read_from_a_package_or_an_archive() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("lib").join(CPU_LIBRARY);
        fs::create_dir(folder.path().join("lib")).unwrap();
        fs::write(&library, "").unwrap();
        assert_eq!(version_beside(&library), None);
        let python = "from typing import Optional\n\n__version__ = '2.12.0+cu130'\ndebug = False\n";
        fs::write(folder.path().join("version.py"), python).unwrap();
        assert_eq!(version_beside(&library).as_deref(), Some("2.12.0+cu130"));
        fs::write(folder.path().join("build-version"), "2.11.0+cpu\n").unwrap();
        assert_eq!(version_beside(&library).as_deref(), Some("2.11.0+cpu"));
    }
}
