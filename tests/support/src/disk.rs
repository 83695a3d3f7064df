//! A real file system that is soon full.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory, unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts one of so many bytes over a folder.
    ///
    /// # Errors
    /// What `mount` said: not everybody may.
    pub fn mount(path: &Path, bytes: u64) -> Result<Self, String> {
        let size = format!("size={bytes}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "forebay-test"])
            .arg(path)
            .output();
        let mounted = mounted.map_err(|error| format!("mount: {error}"))?;
        match mounted.status.success() {
            true => Ok(Self { path: path.to_owned() }),
            false => Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned()),
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process may still have files there that are about to go.
        Command::new("umount").arg("-l").arg(&self.path).status().ok();
    }
}
