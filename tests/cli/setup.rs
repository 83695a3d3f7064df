//! A home folder of its own for each test, and what a process left behind there.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

/// A home folder of its own, with a catalog and a place for packages.
pub(crate) struct Home {
    pub(crate) dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// With what `tools/setup libtorch` made, in the cache that commands look into.
    pub(crate) fn with_libtorch(self) -> Self {
        let libtorch = fs::canonicalize(".forebay/libtorch").unwrap();
        let kept = libtorch.ancestors().nth(3).unwrap();
        fs::create_dir_all(self.path("cache")).unwrap();
        symlink(kept, self.path("cache").join(kept.file_name().unwrap())).unwrap();
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("HOME", self.dir.path())
            .env("FOREBAY_CATALOG", self.path("catalog"))
            .env("FOREBAY_CACHE", self.path("cache"))
            .env_remove("XDG_DATA_HOME")
            .env_remove("FOREBAY_PYTHON")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    pub(crate) fn shell(&self, arguments: &[&str]) -> Ran {
        self.run(&[&["shell", "--emulated-accelerators", "1", "-q"], arguments].concat())
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The package of an emulated model from `n` to `digest`; returns its folder.
    pub(crate) fn package(&self, name: &str, service_ms: u64) -> String {
        self.write(&format!("{name}/labels.txt"), LABELS);
        self.write(&format!("{name}/model.toml"), &manifest(name, service_ms));
        self.path(name).display().to_string()
    }
}

/// A process that does not outlive its test, however that ends.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What a process left behind.
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            status: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Its standard output, if it succeeded without a word on stderr.
    #[track_caller]
    pub(crate) fn succeeds(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""), "{}", self.stdout);
        self.stdout
    }

    /// Its standard error, if it failed and printed nothing else.
    #[track_caller]
    pub(crate) fn fails(self) -> String {
        assert_eq!((self.status, self.stdout.as_str()), (Some(1), ""), "{}", self.stderr);
        self.stderr
    }
}

pub(crate) const LABELS: &str = "hello\n";

pub(crate) fn manifest(name: &str, service_ms: u64) -> String {
    format!(
        r#"
format = 1
name = "{name}"
version = "7"
description = "a stand-in"
license = "Apache-2.0"

[[input]]
name = "n"
type = "BIGINT"

[[output]]
name = "digest"
type = "BIGINT"

[transform]
kind = "tensor"

[runtime]
kind = "emulated"
service_ms = {service_ms}

[resources]
cpus = 0
gpus = 1
memory = "1 MiB"
gpu_memory = "1 MiB"

[batch]
max_rows = 4
window_rows = 16

[files]
"labels.txt" = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
"#
    )
}
