//! GPUs that cannot be used: with a driver of which each run says how it fails.

use std::process::Command;

use super::setup::{Home, Ran, manifest};

/// The SHA-256 of an empty file: nothing loads the program.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The folder of a library in place of the NVIDIA driver's.
fn fake_driver(home: &Home) -> String {
    let folder = home.path("driver");
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvidia/cuda.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", source, "-o"]).arg(folder.join("libcuda.so.1"));
    assert!(compiler.status().unwrap().success());
    folder.display().to_string()
}

#[test]
fn a_gpu_that_was_asked_for_and_cannot_be_used_is_refused_with_the_reason_and_the_remedy() {
    let home = Home::new().with_libtorch();
    let driver = fake_driver(&home);
    home.write("gpu/model.pt", "");
    let emulated = "kind = \"emulated\"\nservice_ms = 1";
    let manifest = manifest("gpu", 1).replace(emulated, "kind = \"torch\"\nprogram = \"model.pt\"");
    let (described, _) = manifest.split_once("[files]").unwrap();
    home.write("gpu/model.toml", &format!("{described}[files]\n\"model.pt\" = \"{EMPTY}\"\n"));
    let query = "CREATE TEMPORARY MODEL gpu LOCATION 'gpu' WITH ('device' = 'cuda'); \
                 SELECT * FROM ml_predict((SELECT 1 AS n), MODEL gpu, DESCRIPTOR(n))";
    let run = |variables: &[(&str, &str)], driver: &str| {
        let mut shell = home.command(&["shell", "-q", "-c", query]);
        let paths = [driver, &std::env::var("LD_LIBRARY_PATH").unwrap_or_default()].join(":");
        shell.env("LD_LIBRARY_PATH", paths).env_remove("CUDA_VISIBLE_DEVICES");
        let said = Ran::of(shell.envs(variables.iter().copied()).output().unwrap()).fails();
        assert!(said.contains("device=cuda was asked for and CUDA cannot be used: "), "{said}");
        assert!(said.contains("; run `forebay doctor`, or use device=auto"), "{said}");
        said
    };
    let cases: [(&str, &str, &[&str]); 6] = [
        (
            "FAKE_CUDA_INIT",
            "803",
            &["its kernel module are of different versions", "restart the machine"],
        ),
        ("FAKE_CUDA_INIT", "802", &["nvidia-fabricmanager", "must run"]),
        ("FAKE_CUDA_INIT", "999", &["cuInit returned 999", "`nvidia-smi`"]),
        ("CUDA_VISIBLE_DEVICES", "", &["CUDA_VISIBLE_DEVICES is ''", "unset it"]),
        ("CUDA_VISIBLE_DEVICES", "9", &["CUDA_VISIBLE_DEVICES is '9'", "`nvidia-smi -L`"]),
        (
            "FAKE_CUDA_VERSION",
            "9020",
            &["too old: it knows CUDA 9.2, and this torch was built for CUDA", "update the driver"],
        ),
    ];
    for (variable, value, parts) in cases {
        let said = run(&[(variable, value)], &driver);
        for part in parts {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // One that is no library.
    home.write("damaged/libcuda.so.1", "not a library");
    let said = run(&[], &home.path("damaged").display().to_string());
    assert!(said.contains("the NVIDIA driver's library cannot be loaded"), "{said}");
}
