//! `forebay model export`: runs the Python tool that makes packages.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use datafusion::common::exec_err;
use datafusion::error::Result;
use forebay_udf::model::Package;

use crate::args::model::ExportArgs;

/// Names the Python that the exporter runs in; the command that `pip` installs sets it to its own.
const PYTHON: &str = "FOREBAY_PYTHON";
const MODULE: &str = "forebay.export";
/// In a checkout: runs the Python of the environment that `tools/setup` made.
const LAUNCHER: &str = "tools/python";

/// Makes the package; returns its folder. Progress goes to stderr.
pub(super) fn export(args: &ExportArgs) -> Result<PathBuf> {
    let python = find_python()?;
    let mut command = Command::new(&python);
    command.args(["-m", MODULE]).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.arg("--source").arg(&args.source);
    for (option, values) in [("--output", &args.output), ("--input", &args.input)] {
        for value in values {
            command.arg(option).arg(value);
        }
    }
    let max_tokens = args.max_tokens.map(|tokens| tokens.to_string());
    let seconds = args.seconds.map(|seconds| seconds.to_string());
    for (option, value) in [
        ("--name", &args.name),
        ("--version", &args.version),
        ("--license", &args.license),
        ("--description", &args.description),
        ("--task", &args.task),
        ("--format", &args.format),
        ("--precision", &args.precision),
        ("--max-tokens", &max_tokens),
        ("--seconds", &seconds),
    ] {
        if let Some(value) = value {
            command.arg(option).arg(value);
        }
    }
    let files =
        [("--weights", &args.weights), ("--labels", &args.labels), ("--sample", &args.sample)];
    for (option, file) in files {
        if let Some(file) = file {
            command.arg(option).arg(file);
        }
    }
    for (option, is_given) in [
        ("--compile", args.compile),
        ("--images", args.images),
        ("--normalize", args.normalize),
        ("--trust-remote-code", args.trust_remote_code),
        ("--force", args.force),
    ] {
        if is_given {
            command.arg(option);
        }
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return exec_err!("{} cannot be run: {error}", python.display()),
    };
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().last() {
        Some(path) if output.status.success() => {
            println!("{path}");
            Ok(PathBuf::from(path))
        }
        // The tool has said why.
        _ => exec_err!("the export failed ({})", output.status),
    }
}

/// The Python that is named, or that of the checkout which the executable or the current folder is in.
fn find_python() -> Result<PathBuf> {
    if let Some(python) = env::var_os(PYTHON).filter(|python| !python.is_empty()) {
        return Ok(PathBuf::from(python));
    }
    let executable = env::current_exe().and_then(std::fs::canonicalize).ok();
    let places = [env::current_dir().ok(), executable];
    let found = places.iter().flatten().find_map(|place| {
        place.ancestors().map(|folder| folder.join(LAUNCHER)).find(|launcher| launcher.is_file())
    });
    match found {
        Some(launcher) => Ok(launcher),
        None => exec_err!(
            "the exporter is a Python package, and no Python with it was found: run `pip install \
             'forebay[export]'` and use the command `forebay` of that environment, or set {PYTHON} to \
             its interpreter"
        ),
    }
}

/// The package's name as one that SQL takes without quotes: `all_minilm_l6_v2`.
pub(super) fn sql_name(package: &Path) -> Result<String> {
    let (manifest, _) = Package::verify(package, None)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    Ok(manifest.name.chars().map(plain).collect())
}
