//! `forebay model`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::setup::{Home, Ran};

#[test]
fn a_model_is_added_used_and_removed() {
    let home = Home::new();
    let package = home.package("echo", 1);
    let added = home.run(&["model", "add", "Echo", &package, "--option", "gpus=0.5"]).succeeds();
    assert!(added.starts_with("added model echo, version 7, from file://"), "{added}");
    let again = home.run(&["model", "add", "echo", &package]).fails();
    assert!(again.starts_with("error: model 'echo' already exists"), "{again}");
    home.run(&["model", "add", "echo", &package, "--replace", "--version", "8"]).succeeds();
    let listed = home.run(&["model", "list"]).succeeds();
    assert!(listed.contains("| echo | 8 ") && listed.contains("a stand-in"), "{listed}");
    let shown = home.run(&["model", "show", "echo"]).succeeds();
    assert!(shown.contains("BIGINT") && shown.contains("Apache-2.0"), "{shown}");
    let sql = "select count(digest) as rows from
        ml_predict((select value as n from generate_series(1, 9)), MODEL echo, DESCRIPTOR(n))";
    assert_eq!(home.shell(&["--format", "csv", "-c", sql]).succeeds(), "rows\n9\n");
    let removed = home.run(&["model", "remove", "echo"]).succeeds();
    assert!(removed.starts_with("removed model echo"), "{removed}");
    assert!(Path::new(&package).join("model.toml").exists());
    let unknown = home.run(&["model", "remove", "echo"]).fails();
    assert!(unknown.starts_with("error: model 'echo' does not exist"), "{unknown}");
}

#[test]
fn options_are_checked_when_a_model_is_added() {
    let home = Home::new();
    let package = home.package("echo", 1);
    let message = home.run(&["model", "add", "m", &package, "--option", "gpu=1"]).fails();
    assert!(message.contains("unknown model option 'gpu' (did you mean 'gpus'?)"), "{message}");
    let ran = home.run(&["model", "add", "m", &package, "--option", "gpus"]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
}

#[test]
fn verify_names_the_files_that_changed() {
    let home = Home::new();
    let package = home.package("echo", 1);
    home.run(&["model", "add", "echo", &package]).succeeds();
    for model in ["echo", &package] {
        let checked = home.run(&["model", "verify", model]).succeeds();
        assert_eq!(checked.matches("ok ").count(), 2, "{checked}");
    }
    home.write("echo/labels.txt", "changed\n");
    let ran = home.run(&["model", "verify", "echo"]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stdout.contains("ok       model.toml"), "{}", ran.stdout);
    assert!(ran.stdout.contains("PROBLEM  labels.txt  has changed"), "{}", ran.stdout);
    fs::remove_file(home.path("echo/labels.txt")).unwrap();
    let ran = home.run(&["model", "verify", &package]);
    assert!(ran.stdout.contains("PROBLEM  labels.txt  is missing"), "{}", ran.stdout);
    home.package("echo", 2);
    let ran = home.run(&["model", "verify", "echo"]);
    assert!(ran.stdout.contains("PROBLEM  model.toml  has changed"), "{}", ran.stdout);
    assert_eq!(ran.status, Some(1));
}

/// A Python that behaves as if it ran the exporter, but makes the package of an emulated model.
fn fake_export_tool(home: &Home) -> String {
    let package = home.package("made-of.it", 1);
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $4\" = '-m forebay.export good' ] || {{ echo 'export: no such model' >&2; exit 1; }}\n\
         echo progress\necho \"$@\" > arguments\ncp -r '{package}' \"$6\"\necho \"$6\"\n"
    );
    let python = home.write("tool/python", &script);
    fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
    python
}

#[test]
fn export_runs_the_tool_and_adds_the_model() {
    let home = Home::new();
    let tool = fake_export_tool(&home);
    let export = |source: &str, rest: &[&str]| {
        let arguments = [&["model", "export", source, "--output", "out"], rest].concat();
        Ran::of(home.command(&arguments).env("FOREBAY_PYTHON", &tool).output().unwrap())
    };
    let message = export("bad", &[]).fails();
    assert!(message.starts_with("export: no such model\nerror: the export failed"), "{message}");
    let printed = export("good", &["--add"]).succeeds();
    assert!(printed.starts_with("out\nadded model made_of_it, version 7"), "{printed}");
    fs::remove_dir_all(home.path("out")).unwrap();
    let options = "--task image-classification --weights w.pth --labels l.txt --compile --normalize \
                   --force";
    export("good", &options.split(' ').collect::<Vec<_>>()).succeeds();
    let given = fs::read_to_string(home.path("arguments")).unwrap();
    assert!(given.ends_with(&format!("--output out {options}\n")), "{given}");
    let message = home.run(&["model", "export", "x", "--output", "y"]);
    // Found beside the executable if it lies in a checkout, otherwise refused with the remedy.
    assert_eq!(message.status, Some(1), "{}", message.stdout);
}

#[test]
fn native_code_runs_where_the_command_line_allows_it() {
    let home = Home::new().with_libtorch();
    home.run(&["model", "add", "native", &prepared("fixtures/compiled/package")]).succeeds();
    let query =
        "SELECT e[1] IS NULL AS missing FROM (SELECT ml_predict(MODEL native, 'text') AS e)";
    let shell = |more: &[&str]| {
        home.run(&[&["shell", "-q", "--format", "csv", "-c", query], more].concat())
    };
    let message = home.run(&["shell", "-q", "-c", query]).fails();
    assert!(message.contains("is native code") && message.contains("--allow-native"), "{message}");
    assert_eq!(shell(&["--allow-native"]).succeeds(), "missing\nfalse\n");
    // Whether it is allowed there, workers were told.
    let refused = shell(&["--allow-native", "--connect", "127.0.0.1:1"]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("--allow-native"), "{}", refused.stderr);
}

/// They are a table of the exporter's.
#[test]
fn the_help_of_export_names_all_tasks() {
    let tasks = fs::read_to_string("python/forebay/export/tasks.py").unwrap();
    let table = tasks.split("TASKS = {").nth(1).unwrap().split("\n}").next().unwrap();
    let tasks: Vec<&str> = table.lines().filter_map(|line| line.trim().split('"').nth(1)).collect();
    assert!(tasks.len() > 14, "{tasks:?}");
    let help = Home::new().run(&["model", "export", "--help"]).succeeds();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for task in tasks {
        assert!(
            help.contains(&format!(" {task}, ")) || help.contains(&format!(", {task} ")),
            "{task}: {help}"
        );
    }
}

/// What `tools/setup onnxruntime` unpacks is not looked for where a folder is named.
#[test]
fn onnx_runtime_that_is_missing_or_another_one_is_named_with_a_remedy() {
    let home = Home::new();
    let model = fs::canonicalize(".forebay/fixtures/onnx/logistic/model.onnx").unwrap();
    // Nothing of it is needed to create a model.
    home.run(&["model", "add", "logistic", model.to_str().unwrap()]).succeeds();
    let query = "SELECT label FROM ml_predict((SELECT arrow_cast([1.0, 2.0, 3.0, 4.0], \
                 'FixedSizeList(4, Float32)') AS \"X\"), MODEL logistic)";
    let with = |folder: &str| {
        let command = &mut home.command(&["shell", "-q", "-c", query]);
        Ran::of(command.env("FOREBAY_ONNXRUNTIME", home.path(folder)).output().unwrap())
    };
    fs::create_dir_all(home.path("nothing")).unwrap();
    fs::create_dir_all(home.path("old")).unwrap();
    home.write("broken/libonnxruntime.so.1.31.1", "this is no library");
    let source = "struct Base { void *api; const char *(*version)(void); };\n\
                  static const char *version(void) { return \"1.17.3\"; }\n\
                  static struct Base base = { 0, version };\n\
                  struct Base *OrtGetApiBase(void) { return &base; }\n";
    let source = home.write("old/base.c", source);
    let library = home.path("old/libonnxruntime.so.1.17.3");
    let arguments = ["-shared", "-fPIC", "-o"];
    let made = std::process::Command::new("cc").args(arguments).arg(library).arg(source).status();
    assert!(made.unwrap().success());
    for (folder, expected) in [
        ("nothing", "libonnxruntime.so cannot be loaded: it is not in "),
        ("broken", "libonnxruntime.so.1.31.1: "),
        ("old", "libonnxruntime.so.1.17.3 is of ONNX Runtime 1.17.3, expected 1.24 or newer"),
    ] {
        let ran = with(folder);
        assert_ne!(ran.status, Some(0));
        assert!(ran.stderr.contains(expected), "{folder}: {}", ran.stderr);
        assert!(ran.stderr.contains("run `tools/setup onnxruntime`"), "{folder}: {}", ran.stderr);
        let doctor =
            home.command(&["doctor"]).env("FOREBAY_ONNXRUNTIME", home.path(folder)).output();
        let report = Ran::of(doctor.unwrap()).stdout;
        assert!(report.contains("ONNX Runtime\n  library     PROBLEM: "), "{report}");
    }
}

/// What is in a folder that `make setup` prepares.
fn prepared(path: &str) -> String {
    std::env::current_dir().unwrap().join(".forebay").join(path).display().to_string()
}

#[test]
fn a_precision_that_cpus_emulate_is_refused_when_it_is_asked_for() {
    let home = Home::new();
    let package = prepared("fixtures/bert/package");
    let refused = |sql: &str| {
        let mut command = home.command(&["shell", "-c", sql]);
        // Which keeps oneDNN from the instructions, as CPUs without them do.
        let ran = Ran::of(command.env("ONEDNN_MAX_CPU_ISA", "AVX2").output().unwrap());
        let message = ran.fails();
        let reasons =
            ["ONEDNN_MAX_CPU_ISA = AVX2", "those of this machine have neither AVX512_BF16"];
        let is_named = |reason: &&str| {
            message.contains(&format!("precision = 'bf16' would run on CPU cores, and {reason}"))
        };
        assert!(reasons.iter().any(is_named), "{message}");
        assert!(message.contains("use precision = 'fp32', which is faster there"), "{message}");
    };
    let create = format!("CREATE MODEL m LOCATION '{package}'");
    let options = |precision: &str| format!("WITH ('device' = 'cpu', 'precision' = '{precision}')");
    refused(&format!("{create} {}", options("bf16")));
    home.shell(&["-c", &format!("{create} {}", options("fp32"))]).succeeds();
    refused("ALTER MODEL m SET ('precision' = 'bf16')");
    refused("SELECT * FROM ml_predict((SELECT 'a' AS text), MODEL m, precision => 'bf16')");
    // Half of the other kind is what the package says it is.
    home.shell(&["-c", "ALTER MODEL m SET ('precision' = 'fp16')"]).succeeds();
}

#[test]
fn the_measured_quality_of_a_precision_is_shown() {
    let home = Home::new();
    home.run(&["model", "add", "small", &prepared("fixtures/onnx/package-int8/model")]).succeeds();
    let shown = home.run(&["model", "show", "small"]).succeeds();
    let quality = shown.lines().find(|line| line.contains("mean cosine")).unwrap_or(&shown);
    assert!(quality.contains("| precision | int8 "), "{shown}");
    assert!(quality.contains(" with fp32, over 64 rows"), "{shown}");
}

#[test]
fn which_kernels_are_faster_is_measured_once_for_all_processes() {
    let home = Home::new();
    home.run(&["model", "add", "bert", &prepared("fixtures/bert/package")]).succeeds();
    let run = || {
        let mut command =
            home.command(&["shell", "-q", "-c", "SELECT ml_predict(MODEL bert, 'a')"]);
        command.env_remove("FOREBAY_LINEAR");
        // Where libtorch is.
        for name in ["HOME", "FOREBAY_CACHE"] {
            match std::env::var_os(name) {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        Ran::of(command.output().unwrap()).succeeds();
    };
    run();
    let path = home.path("catalog/learned/linear-kernels.toml");
    let measured = fs::read_to_string(&path).unwrap();
    assert!(measured.contains("libtorch 2.11") && measured.contains(" on 1\" = "), "{measured}");
    // A process that measured again would write what holds.
    let other = measured.replace("\"mkl\"", "\"\"").replace("onednn", "mkl");
    let other = other.replace("blocks", "mkl").replace("\"\"", "\"onednn\"");
    assert_ne!(measured, other);
    fs::write(&path, &other).unwrap();
    run();
    // It may have had time for more.
    let kept = fs::read_to_string(&path).unwrap();
    for line in other.lines() {
        assert!(kept.contains(line), "{line} in {kept}");
    }
}
