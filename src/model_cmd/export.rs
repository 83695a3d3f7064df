//! `forebay model export`: runs the Python tool that makes packages.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use datafusion::common::exec_err;
use datafusion::error::Result;
use forebay_udf::model::Package;

use crate::ExportArgs;

/// Names the tool's folder, where it is not found by itself.
const TOOL: &str = "FOREBAY_EXPORT_TOOL";
const SCRIPT: &str = "export.py";
/// Runs the script with the Python of the tool's own environment.
const INTERPRETER: &str = "python";

/// Makes the package; returns its folder. Progress goes to stderr.
pub(super) fn export(args: &ExportArgs) -> Result<PathBuf> {
    let tool = find_tool()?;
    let mut command = Command::new(tool.join(INTERPRETER));
    command.arg(tool.join(SCRIPT)).stdin(Stdio::null()).stderr(Stdio::inherit());
    command.arg("--source").arg(&args.source).arg("--output").arg(&args.output);
    let max_tokens = args.max_tokens.map(|tokens| tokens.to_string());
    for (option, value) in [
        ("--name", &args.name),
        ("--version", &args.version),
        ("--license", &args.license),
        ("--description", &args.description),
        ("--task", &args.task),
        ("--max-tokens", &max_tokens),
    ] {
        if let Some(value) = value {
            command.arg(option).arg(value);
        }
    }
    for (option, file) in [("--weights", &args.weights), ("--labels", &args.labels)] {
        if let Some(file) = file {
            command.arg(option).arg(file);
        }
    }
    for (option, is_given) in
        [("--images", args.images), ("--normalize", args.normalize), ("--force", args.force)]
    {
        if is_given {
            command.arg(option);
        }
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return exec_err!("{} cannot be run: {error}", tool.display()),
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

/// `tools/export` of the checkout that the executable or the current folder is in.
fn find_tool() -> Result<PathBuf> {
    if let Some(folder) = env::var_os(TOOL).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        return match is_tool(&folder) {
            true => Ok(folder),
            false => exec_err!("{TOOL} is {}, which holds no {SCRIPT}", folder.display()),
        };
    }
    let executable = env::current_exe().and_then(std::fs::canonicalize).ok();
    let places = [env::current_dir().ok(), executable];
    let found = places.iter().flatten().find_map(|place| {
        place.ancestors().map(|folder| folder.join("tools/export")).find(|tool| is_tool(tool))
    });
    match found {
        Some(tool) => Ok(tool),
        None => exec_err!(
            "the export tool was not found; run this inside Forebay's checkout, or set {TOOL} to \
             its folder tools/export"
        ),
    }
}

fn is_tool(folder: &Path) -> bool {
    folder.join(SCRIPT).is_file() && folder.join(INTERPRETER).is_file()
}

/// The package's name as one that SQL takes without quotes: `all_minilm_l6_v2`.
pub(super) fn sql_name(package: &Path) -> Result<String> {
    let (manifest, _) = Package::verify(package)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    Ok(manifest.name.chars().map(plain).collect())
}
