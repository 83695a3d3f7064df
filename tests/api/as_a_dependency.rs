//! A program of a user's own, in another folder and another workspace, with no variable set: it
//! builds, and its model runs. Its name makes it the first test: its build takes minutes, mostly on one core.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The example as somebody would copy it.
struct Outside {
    folder: tempfile::TempDir,
}

impl Outside {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let example = Path::new(ROOT).join("examples/embed");
        let manifest = fs::read_to_string(example.join("Cargo.toml")).unwrap();
        assert!(manifest.contains("path = \"../..\""));
        let manifest = manifest.replace("path = \"../..\"", &format!("path = \"{ROOT}\""));
        fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
        fs::create_dir(folder.path().join("src")).unwrap();
        fs::copy(example.join("src/main.rs"), folder.path().join("src/main.rs")).unwrap();
        // So that nothing is fetched, and dependencies are those that are built already: the same
        // versions, the same profile.
        let lock = Path::new(ROOT).join("Cargo.lock");
        fs::copy(lock, folder.path().join("Cargo.lock")).unwrap();
        fs::create_dir(folder.path().join(".cargo")).unwrap();
        fs::write(folder.path().join(".cargo/config.toml"), profile()).unwrap();
        Self { folder }
    }

    /// With nothing that names libtorch, CMake or NASM. Cargo's own variables, which this test has
    /// from the cargo that runs it, would lead the build back to this package.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path());
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let is_cargos = name.starts_with("CARGO_") && name != "CARGO_HOME";
            if is_cargos || ["FOREBAY_LIBTORCH", "CMAKE", "ASM_NASM"].contains(&&*name) {
                command.env_remove(&*name);
            }
        }
        command
    }
}

/// The settings of our development profile.
fn profile() -> String {
    let manifest = fs::read_to_string(Path::new(ROOT).join("Cargo.toml")).unwrap();
    let mut manifest: toml::Table = manifest.parse().unwrap();
    let mut profiles = toml::Table::new();
    let toml::Value::Table(mut all) = manifest.remove("profile").unwrap() else { panic!() };
    let mut dev = all.remove("dev").unwrap();
    // That package is no member there.
    dev["package"].as_table_mut().unwrap().remove("forebay-scheduler");
    profiles.insert("dev".to_owned(), dev);
    toml::to_string(&toml::Table::from_iter([("profile".to_owned(), profiles.into())])).unwrap()
}

/// Where this test was built.
fn target() -> PathBuf {
    let executable = std::env::current_exe().unwrap();
    executable.ancestors().nth(3).unwrap().to_owned()
}

fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr];
    parts.map(|part| String::from_utf8_lossy(part).into_owned()).join("\n")
}

#[test]
fn a_crate_outside_of_the_checkout_builds_and_runs_a_model() {
    let outside = Outside::new();
    let build = outside
        .command("cargo")
        .args(["build", "--offline", "--target-dir"])
        .arg(target())
        // It is built once.
        .env("CARGO_INCREMENTAL", "0")
        .output()
        .unwrap();
    assert!(build.status.success(), "{}", text(&build));

    let package = Path::new(ROOT).join(".forebay/models/all-minilm-l6-v2");
    let run = outside
        .command(target().join("debug/embed"))
        .arg(package)
        .args(["a small house", "the stock market fell", "a little cottage"])
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", text(&run));
    let table = text(&run);
    let place = |words: &str| table.find(words).unwrap_or_else(|| panic!("{words}: {table}"));
    assert!(place("| a small house         | 1.0") < place("| a little cottage "), "{table}");
    assert!(place("| a little cottage ") < place("| the stock market fell "), "{table}");
}
