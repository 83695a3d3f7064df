//! Rules about the code itself that a machine can check.

mod imports;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file before its tests, and of a file of tests.
const LINES_MAX: usize = 450;
const LINES_OF_TESTS_MAX: usize = 600;

/// Where the sources of our crates are.
const CRATES: [&str; 5] = ["src", "planner/src", "engine/src", "udf/src", "scheduler/src"];

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push((path.clone(), fs::read_to_string(path).unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "no sources below {}", folders.len());
    found.sort();
    found
}

fn all_sources() -> Vec<(PathBuf, String)> {
    CRATES.map(sources).concat()
}

/// The part of a file that is not tests.
fn code(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

/// Whether the line has the word, not as the end of a longer one.
fn names(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
    })
}

fn refuse(folder: &str, except: &[&str], words: &[&str], why: &str) {
    for (path, text) in sources(folder) {
        if except.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (number, line) in code(&text).lines().enumerate() {
            let comment = line.trim_start().starts_with("//");
            let found = words.iter().find(|word| !comment && names(line, word));
            assert!(found.is_none(), "{}:{}: {line}\n{why}", path.display(), number + 1);
        }
    }
}

#[test]
fn files_are_read_in_one_sitting() {
    for (path, text) in all_sources() {
        let lines = code(&text).lines().count();
        let is_tests =
            path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests"));
        let most = if is_tests { LINES_OF_TESTS_MAX } else { LINES_MAX };
        assert!(lines <= most, "{}: {lines} lines before tests, split it", path.display());
    }
}

#[test]
fn no_file_imports_itself_through_others() {
    let mut found = String::new();
    for circle in CRATES.iter().flat_map(|root| imports::circles(root, &sources(root))) {
        found += "\nfiles that import each other:\n";
        for (from, to, names) in circle {
            let names: Vec<_> = names.into_iter().collect();
            found += &format!("  {from} takes from {to}: {}\n", names.join(", "));
        }
    }
    assert!(found.is_empty(), "{found}Move what both need into a file below them.");
}

#[test]
fn fences_between_folders_hold() {
    let torch = "udf/src/runtime/torch";
    let onnx = "udf/src/runtime/onnx";
    refuse("udf/src", &[torch], &["tch::"], "tch stays in runtime/torch");
    refuse("udf/src", &[onnx], &["ort::"], "ort stays in runtime/onnx");
    let jpeg = "udf/src/feature/image/jpeg/decompressor.rs";
    let why = "unsafe stays where libraries in C are called";
    refuse("udf/src", &[torch, onnx, jpeg], &["unsafe "], why);
    for folder in ["engine/src", "planner/src", "src"] {
        refuse(folder, &[], &["tch::", "ort::"], "tch and ort stay in udf/src");
        refuse(folder, &["src/allocator.rs"], &["unsafe "], why);
    }
    for folder in ["planner/src/sql", "planner/src/logical", "planner/src/optimizer"] {
        refuse(folder, &[], &["forebay_engine"], "only planner/src/physical knows the engine");
    }
    refuse("udf/src", &[], &["forebay_engine", "forebay_planner"], "udf is the lowest crate");
    refuse("engine/src", &[], &["forebay_planner", "sqlparser"], "the engine knows no SQL");
    let run_time = ["config_options()", "extensions.get"];
    refuse("engine/src", &[], &run_time, "operators get what they need when they are planned");
    for pure in ["queue", "seal", "batcher", "share", "order", "window", "budget"] {
        let text = fs::read_to_string(format!("engine/src/exchange/{pure}.rs")).unwrap();
        for word in ["physical_plan::", "tokio::", "forebay_udf::runtime"] {
            assert!(!code(&text).contains(word), "exchange/{pure}.rs names {word}; keep it pure");
        }
    }
    for folder in ["scheduler/src/graph", "scheduler/src/placement"] {
        let outside =
            ["tokio", "tonic", "ballista", "datafusion", "std::time", "rand", "std::thread"];
        let outside: Vec<String> = outside.iter().map(|word| format!("{word}::")).collect();
        let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
        refuse(folder, &[], &outside, "the scheduler's core is pure: time comes in as a value");
    }
    fences_of_the_scheduler();
    fences_of_flight();
    for servers in ["src/serve", "src/args", "src/terminal"] {
        refuse(servers, &[], &["crate::shell"], "servers do not depend on the shell");
    }
    for folder in ["udf/src", "engine/src", "planner/src", "scheduler/src"] {
        refuse(folder, &[], &["println!", "eprintln!"], "library crates do not print");
    }
}

/// Its folders, each of which may name those behind it only.
const SCHEDULER: [&str; 12] = [
    "process",
    "client",
    "worker",
    "ballista",
    "coordinator",
    "stages",
    "block",
    "tables",
    "protocol",
    "placement",
    "journal",
    "graph",
];

/// Folders of `src/flight`, each of which may name those behind it only.
const FLIGHT: [&str; 7] =
    ["service", "stream", "statements", "jobs", "limits", "access", "protocol"];

fn fences_of_flight() {
    for (number, folder) in FLIGHT.iter().enumerate() {
        let above: Vec<String> =
            FLIGHT[..number].iter().map(|above| format!("crate::flight::{above}")).collect();
        let above: Vec<&str> = above.iter().map(String::as_str).collect();
        let why = "folders of src/flight name those below them only";
        refuse(&format!("src/flight/{folder}"), &[], &above, why);
    }
}

fn fences_of_the_scheduler() {
    let root = "scheduler/src";
    let at = |folder: &str| format!("{root}/{folder}");
    for (number, folder) in SCHEDULER.iter().enumerate() {
        let above: Vec<String> =
            SCHEDULER[..number].iter().map(|above| format!("crate::{above}::")).collect();
        let above: Vec<&str> = above.iter().map(String::as_str).collect();
        refuse(&at(folder), &[], &above, "folders of the scheduler name those below them only");
    }
    for (word, folders) in [
        ("ballista_scheduler", &["ballista", "stages", "process"][..]),
        ("ballista_executor", &["worker", "process"]),
        ("ballista_core", &["ballista", "stages", "process", "worker", "client", "coordinator"]),
    ] {
        let folders: Vec<String> = folders.iter().map(|folder| at(folder)).collect();
        let folders: Vec<&str> = folders.iter().map(String::as_str).collect();
        refuse(root, &folders, &[word], "only these folders of the scheduler know Ballista");
    }
}

#[test]
fn paths_named_in_documents_exist() {
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/scheduler.md"] {
        let text = fs::read_to_string(document).unwrap();
        for quoted in text.split('`').skip(1).step_by(2) {
            let is_path = quoted.contains('/') && !quoted.contains([' ', '<', '*', ':', '~', '$']);
            let known = [
                "planner/",
                "scheduler/",
                "engine/",
                "udf/",
                "src/",
                "tests/",
                "docs/",
                "tools/",
                "sql-examples/",
                "benches/",
            ];
            if is_path && known.iter().any(|folder| quoted.starts_with(folder)) {
                assert!(Path::new(quoted).exists(), "{document}: `{quoted}` does not exist");
            }
        }
    }
}

#[test]
fn every_option_is_documented() {
    let reference = fs::read_to_string("docs/sql.md").unwrap();
    for (key, values, what) in forebay_udf::model::ModelOptions::KEYS {
        assert!(reference.contains(&format!("| `{key}` |")), "docs/sql.md lacks `{key}`");
        assert!(reference.contains(what), "docs/sql.md describes `{key}` otherwise: {what}");
        assert!(!values.is_empty());
    }
    use datafusion::config::ExtensionOptions;
    for entry in forebay::ForebayConfig::default().entries() {
        let key = entry.key.trim_start_matches("forebay.");
        let value = entry.value.unwrap_or_default();
        let what = entry.description.trim_end_matches('.');
        let row = format!("| `forebay.{key}` | {value} | {what} |").to_lowercase();
        assert!(reference.to_lowercase().contains(&row), "docs/sql.md lacks the row {row}");
    }
}

#[test]
fn licenses_of_what_is_linked_are_listed() {
    let output = Command::new("tools/third-party").arg("--check").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
