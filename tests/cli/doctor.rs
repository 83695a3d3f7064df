//! `forebay doctor`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::setup::{Home, Ran};

#[test]
fn doctor_reports_what_is_there_and_what_is_wrong() {
    let home = Home::new().with_libtorch();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    let without = home.run(&["doctor"]).stdout;
    assert!(without.contains("  none        no ONNX model can run; run `tools/setup"), "{without}");
    let onnxruntime = fs::canonicalize(".forebay/onnxruntime").unwrap();
    let kept = onnxruntime.ancestors().nth(2).unwrap();
    symlink(kept, home.path("cache").join(kept.file_name().unwrap())).unwrap();
    let healthy = home.run(&["doctor"]);
    assert_eq!(healthy.status, Some(0), "{}{}", healthy.stdout, healthy.stderr);
    for expected in ["libtorch", "2.11.0", "1.31.1", "cores", "memory", "echo", "no problems found"]
    {
        assert!(healthy.stdout.contains(expected), "{expected}: {}", healthy.stdout);
    }
    home.write("echo/labels.txt", "changed\n");
    home.write("catalog/broken.toml", "this is no model");
    let report = home.run(&["doctor"]);
    assert_eq!(report.status, Some(1));
    assert!(report.stdout.contains("labels.txt has changed"), "{}", report.stdout);
    assert!(report.stdout.contains("broken.toml"), "{}", report.stdout);
    assert_eq!(report.stdout.matches("fix: ").count(), 2, "{}", report.stdout);
    assert!(report.stdout.contains("or export it again, then: "), "{}", report.stdout);
    assert!(report.stdout.contains("2 problems found"), "{}", report.stdout);
    let report = Ran::of(
        home.command(&["doctor"]).env("FOREBAY_CATALOG", "echo/labels.txt").output().unwrap(),
    );
    assert!(report.stdout.contains("not a folder"), "{}", report.stdout);
}

#[test]
fn doctor_names_the_commands_on_the_path_if_they_are_of_several_versions() {
    let home = Home::new();
    for (folder, version) in [("new", "0.2.0"), ("same", "0.2.0"), ("old", "0.1.0")] {
        let text = format!("#!/bin/sh\necho forebay {version}\n");
        let command = home.write(&format!("{folder}/forebay"), &text);
        fs::set_permissions(command, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let doctor = |folders: &[&str]| {
        let path = std::env::join_paths(folders.iter().map(|folder| home.path(folder))).unwrap();
        Ran::of(home.command(&["doctor"]).env("PATH", path).output().unwrap()).stdout
    };
    let report = doctor(&["nothing", "new", "new", "same"]);
    assert!(!report.contains("several"), "{report}");
    let report = doctor(&["new", "old"]);
    let (new, old) = (home.path("new/forebay"), home.path("old/forebay"));
    let (new, old) = (new.display(), old.display());
    let problem = format!("on the path: {new} (forebay 0.2.0), {old} (forebay 0.1.0)\n");
    assert!(report.contains(&problem), "{report}");
    assert!(report.contains("fix: remove all but one"), "{report}");
}

#[test]
fn doctor_suggests_a_command_that_works() {
    let home = Home::new();
    home.run(&["model", "add", "echo", &home.package("echo", 1)]).succeeds();
    // Another description, of the same files.
    home.package("echo", 2);
    let report = home.run(&["doctor"]).stdout;
    let (_, command) = report.split_once("or accept it as it is: forebay ").unwrap();
    let command = command.lines().next().unwrap();
    home.run(&command.split(' ').collect::<Vec<_>>()).succeeds();
    let report = home.run(&["doctor"]).stdout;
    assert!(report.contains("  echo        version 7, emulated"), "{report}");
}
