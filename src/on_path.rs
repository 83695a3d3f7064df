//! The commands `forebay` on the path: two of different versions are easily taken for one.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is wrong, if they are not all of one version: their places and versions, the first one first.
pub(crate) fn problem() -> Option<String> {
    let path = env::var_os("PATH")?;
    let mut commands: Vec<(PathBuf, PathBuf)> = vec![];
    for command in env::split_paths(&path).map(|folder| folder.join("forebay")) {
        // A folder may be on the path twice, or under two names.
        let Ok(real) = fs::canonicalize(&command) else { continue };
        if is_executable(&real) && commands.iter().all(|(_, known)| *known != real) {
            commands.push((command, real));
        }
    }
    let versions: Vec<_> = commands.iter().map(|(command, _)| version(command)).collect();
    if versions.windows(2).all(|two| two[0] == two[1]) {
        return None;
    }
    let shown = commands.iter().zip(&versions).map(|((command, _), version)| {
        format!("{} ({})", command.display(), version.lines().next().unwrap_or("of no version"))
    });
    Some(format!("several forebay are on the path: {}", shown.collect::<Vec<_>>().join(", ")))
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// All that it says of itself: versions, and the commit.
fn version(command: &Path) -> String {
    let output = Command::new(command).arg("--version").stdin(Stdio::null()).output();
    output.map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}
