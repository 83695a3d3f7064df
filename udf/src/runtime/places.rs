//! Where a library that is loaded at run time may be. Nothing of it is known when Forebay is built:
//! the executable may have been copied, and the library may come from anywhere.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders that are looked through for a library, in order.
#[derive(Debug)]
pub(super) struct Places {
    folders: Vec<PathBuf>,
}

impl Places {
    pub(super) fn new(folders: Vec<PathBuf>) -> Self {
        Self { folders }
    }

    /// Of a library of a Python package: who names a folder means that one and no other. Otherwise the
    /// folder `of_package` of the Python environment that the executable is in, `lib` beside the
    /// executable's folder, and the folder where `tools/setup` unpacks it.
    pub(super) fn of_package(variable: &str, of_package: &str, unpacked: Option<PathBuf>) -> Self {
        if let Some(folder) = named(variable) {
            return Self::new(vec![folder]);
        }
        let mut folders = Vec::new();
        if let Some(beside) = executable_folder() {
            // There the executable is in forebay/bin, beside the other packages.
            folders.extend(beside.ancestors().nth(2).map(|site| site.join(of_package)));
            folders.extend(beside.parent().map(|above| above.join("lib")));
        }
        folders.extend(unpacked);
        Self::new(folders)
    }

    /// The first file of that name.
    pub(super) fn find(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file())
    }

    /// The folders, in order.
    pub(super) fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The folders, for a message.
    pub(super) fn shown(&self) -> String {
        let tidy = |folder: &PathBuf| {
            fs::canonicalize(folder).unwrap_or_else(|_| folder.clone()).display().to_string()
        };
        self.folders.iter().map(tidy).collect::<Vec<_>>().join(", ")
    }
}

/// The folder that a variable names.
pub(super) fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// The folder of this executable.
pub(super) fn executable_folder() -> Option<PathBuf> {
    let executable = env::current_exe().and_then(fs::canonicalize).ok()?;
    executable.parent().map(Path::to_owned)
}

/// Whether this process was started by the command that `pip` installs.
pub(super) fn is_of_python() -> bool {
    env::var_os("FOREBAY_PYTHON").is_some()
}
