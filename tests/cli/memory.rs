//! `--memory-limit`.

use std::path::Path;
use std::process::Command;

use super::setup::{Home, manifest};

/// Rows that grow a thousandfold in front of a slow accelerator: 173 MB of text in 300,000 rows, none
/// of which is in the table.
const EXPANDING: &str = "SELECT count(digest) FROM ml_predict(
    (SELECT repeat(CAST(n AS VARCHAR), 200) AS text
     FROM (SELECT value, unnest(range(0, 1000)) AS n FROM range(0, 300))),
    MODEL slow, DESCRIPTOR(text))";

/// Runs the shell; its answer and the most memory that it had resident, in bytes.
fn with_peak(home: &Home, arguments: &[&str]) -> (String, u64) {
    let options = ["shell", "--emulated-accelerators", "1", "-q", "--format", "csv"];
    let command = home.command(&[&options[..], arguments].concat());
    // The kernel knows the peak of a process until it is reaped; the shell's own child is not.
    let mut timed = Command::new("python3");
    timed
        .args(["-c", PEAK])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(home.dir.path())
        .envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let output = timed.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let peak_kb: u64 = stderr.trim().lines().last().unwrap().parse().unwrap();
    (String::from_utf8(output.stdout).unwrap(), peak_kb * 1024)
}

const PEAK: &str = "
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
";

#[test]
fn a_fast_producer_in_front_of_a_slow_model_stays_within_its_memory_limit() {
    // Less than the text of one query.
    const LIMIT: u64 = 128 << 20;
    let home = Home::new();
    let manifest = manifest("slow", 1)
        .replace("\"n\"\ntype = \"BIGINT\"", "\"text\"\ntype = \"STRING\"")
        .replace("max_rows = 4\nwindow_rows = 16", "max_rows = 1024\nwindow_rows = 4096")
        .replace("gpus = 1", "gpus = 0.5");
    let manifest = manifest.split("[files]").next().unwrap();
    let package = home.write("slow/model.toml", manifest);
    let package = Path::new(&package).parent().unwrap().display().to_string();
    let create = format!("CREATE MODEL slow LOCATION '{package}'");
    home.shell(&["-c", &create]).succeeds();
    let limit = ["--memory-limit", "128MB"];
    let (_, baseline) = with_peak(&home, &[&limit[..], &["-c", "select 1"]].concat());

    let (answer, peak) = with_peak(&home, &[&limit[..], &["-c", EXPANDING]].concat());
    assert!(answer.contains("300000"), "{answer}");
    assert!(peak - baseline < LIMIT, "{} MiB", (peak - baseline) >> 20);

    // Two such queries at once, as two branches of one statement.
    let twice = format!("({EXPANDING}) UNION ALL ({EXPANDING})").replace("count(digest)", "sum(1)");
    let twice = twice.replacen("sum(1)", "count(digest)", 2);
    let (answer, peak) = with_peak(&home, &[&limit[..], &["-c", &twice]].concat());
    assert_eq!(answer.matches("300000").count(), 2, "{answer}");
    assert!(peak - baseline < LIMIT, "{} MiB", (peak - baseline) >> 20);
}
