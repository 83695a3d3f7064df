//! `forebay gc`, and what a killed write leaves for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::setup::Home;

fn staging_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let is_staging =
        |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("_forebay-");
    entries.filter(is_staging).collect()
}

#[test]
fn what_a_killed_write_has_left_is_removed_when_it_is_old() {
    let home = Home::new();
    let sql = "COPY (SELECT value FROM range(0, 1000000000000)) TO 'out/' STORED AS CSV";
    let mut child = home.command(&["shell", "-q", "-c", sql]).spawn().unwrap();
    let since = Instant::now();
    // Until a file of it has been begun.
    let is_at_work = |folder: &PathBuf| {
        let lies_there = fs::read_dir(folder).into_iter().flatten().flatten();
        lies_there.filter(|entry| entry.path().is_dir()).count() > 0
    };
    while !staging_folders(home.dir.path()).iter().any(is_at_work) {
        assert!(since.elapsed() < Duration::from_secs(60), "nothing is written");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!home.dir.path().join("out").exists());
    let here = home.dir.path().to_str().unwrap();
    let gc = |more: &[&str]| home.run(&[&["gc", here][..], more].concat()).succeeds();
    assert!(gc(&[]).starts_with("in use"));
    assert!(gc(&["--older-than", "0", "--dry-run"]).starts_with("to remove"));
    assert_eq!(staging_folders(home.dir.path()).len(), 1);
    assert!(gc(&["--older-than", "0"]).starts_with("removed"));
    assert_eq!(staging_folders(home.dir.path()).len(), 0);
    assert_eq!(gc(&["--older-than", "0"]), "");
    // One that nobody can make sense of is named, and fails.
    let damaged = home.dir.path().join("_forebay-0");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("decided"), "half").unwrap();
    let error = home.run(&["gc", here, "--older-than", "0"]).fails();
    assert!(error.contains("/_forebay-0: ") && error.contains("is damaged"), "{error}");
    assert!(damaged.exists());
    // Nothing there is not the same as nothing left.
    let error = home.run(&["gc", "nowhere"]).fails();
    assert!(error.contains("there is no folder 'nowhere'"), "{error}");
}
