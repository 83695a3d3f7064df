//! Which kernels were faster, kept from one process to the next.
//!
//! Measuring takes up to 35 ms of a process's first model. What it says holds for a CPU and a release of
//! libtorch, so the file has a table for each. Losing it costs these milliseconds: a file that cannot be
//! read or written is a warning in the log, not an error.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;

use super::LIBTORCH_VERSION;
use super::shim::{self, LinearChoice};
use crate::files;

/// In the folder of what is learned.
const FILE: &str = "linear-kernels.toml";

/// By shape and what follows the layer, for example `384x256+gelu on 1`, whose kernels: `mkl`, `onednn` or `blocks`.
type Kernels = BTreeMap<String, String>;
/// What is computed with a layer, in the order of the shim's numbers.
const FOLLOWERS: [&str; 5] = ["", "+add", "+relu", "+gelu", "+tanh"];
/// Whose kernels, in the order of the shim's numbers.
const KERNELS: [&str; 3] = ["mkl", "onednn", "blocks"];
/// Counts what was measured: what was faster than others says nothing about those that came later.
const TRIAL: u32 = 2;
/// By machine.
type Machines = BTreeMap<String, Kernels>;

/// What a process remembers.
#[derive(Debug)]
struct Memory {
    path: PathBuf,
    /// How many choices the file has of this machine.
    kept: Mutex<usize>,
}

static MEMORY: OnceLock<Memory> = OnceLock::new();

/// Keeps which kernels of linear layers are faster in this folder, which is created when the first is
/// measured, and takes those that are in it. The first call of a process counts.
pub fn remember_kernels_in(folder: &Path) {
    MEMORY.get_or_init(|| Memory { path: folder.join(FILE), kept: Mutex::default() });
}

/// Tells libtorch's side what is known, before it measures. Does nothing from the second call on.
pub(super) fn recall() {
    static RECALLED: OnceLock<()> = OnceLock::new();
    let Some(memory) = MEMORY.get() else { return };
    RECALLED.get_or_init(|| {
        let mut machines = read(&memory.path).unwrap_or_else(|problem| {
            tracing::warn!("{}: ignored, and written anew: {problem}", memory.path.display());
            Machines::new()
        });
        let choices: Vec<LinearChoice> = machines
            .remove(&machine())
            .into_iter()
            .flatten()
            .filter_map(|(shape, kernels)| parsed(&shape, &kernels))
            .collect();
        match shim::remember_linear(&choices) {
            Ok(()) => *memory.kept.lock() = choices.len(),
            Err(problem) => tracing::warn!("{}: ignored: {problem}", memory.path.display()),
        }
    });
}

/// Keeps what was measured since.
pub(super) fn keep() {
    let Some(memory) = MEMORY.get() else { return };
    let mut kept = memory.kept.lock();
    let choices = shim::linear_choices().unwrap_or_default();
    if choices.len() <= *kept {
        return;
    }
    // Others may have written since it was read. What is damaged was said then.
    let mut machines = read(&memory.path).unwrap_or_default();
    machines.entry(machine()).or_default().extend(choices.iter().map(written));
    match write(&memory.path, &machines) {
        Ok(()) => *kept = choices.len(),
        Err(error) => {
            tracing::warn!(
                "{}: which kernels are faster cannot be kept: {error}",
                memory.path.display()
            );
        }
    }
}

/// The CPU, what it is kept from, the release of libtorch, and the trial.
fn machine() -> String {
    let limits = [
        "ATEN_CPU_CAPABILITY",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
        "MKL_ENABLE_INSTRUCTIONS",
    ]
    .into_iter()
    .filter_map(|name| Some(format!(", {name}={}", env::var(name).ok()?)));
    format!("{}{}, libtorch {LIBTORCH_VERSION}, trial {TRIAL}", cpu(), limits.collect::<String>())
}

/// Its name and, since a virtual one may hide some, its instructions.
fn cpu() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| field.trim() == name).map_or("", |(_, value)| value.trim())
    };
    let vectors = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd", "sve"];
    let has: Vec<&str> = line("flags")
        .split(' ')
        .chain(line("Features").split(' '))
        .filter(|flag| vectors.contains(flag))
        .collect();
    format!("{} ({})", line("model name"), has.join(" "))
}

fn written(choice: &LinearChoice) -> (String, String) {
    let LinearChoice { inputs, outputs, threads, follower, kernels } = choice;
    let [follower, kernels] = [named(&FOLLOWERS, *follower), named(&KERNELS, *kernels)];
    (format!("{inputs}x{outputs}{follower} on {threads}"), kernels.to_owned())
}

fn named(names: &[&'static str], number: i64) -> &'static str {
    usize::try_from(number).ok().and_then(|at| names.get(at)).unwrap_or(&"")
}

fn numbered(names: &[&str], wanted: &str) -> Option<i64> {
    i64::try_from(names.iter().position(|name| *name == wanted)?).ok()
}

/// `None` for what no release has written.
fn parsed(shape: &str, kernels: &str) -> Option<LinearChoice> {
    let (sides, threads) = shape.split_once(" on ")?;
    let (inputs, outputs) = sides.split_once('x')?;
    let digits = outputs.find('+').unwrap_or(outputs.len());
    let (outputs, follower) = outputs.split_at(digits);
    let number = |text: &str| text.parse::<i64>().ok().filter(|number| *number > 0);
    Some(LinearChoice {
        inputs: number(inputs)?,
        outputs: number(outputs)?,
        threads: number(threads)?,
        follower: numbered(&FOLLOWERS, follower)?,
        kernels: numbered(&KERNELS, kernels)?,
    })
}

/// Nothing if there is no file, or none that can be read; an error says what is wrong in it.
fn read(path: &Path) -> Result<Machines, String> {
    let Ok(text) = fs::read_to_string(path) else { return Ok(Machines::new()) };
    toml::from_str(&text).map_err(|error| error.message().to_owned())
}

fn write(path: &Path, machines: &Machines) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    files::replace(path, toml::to_string(machines).map_err(io::Error::other)?.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for (follower, expected) in [(0, "384x1536 on 2"), (3, "384x1536+gelu on 2")] {
            let choice =
                LinearChoice { inputs: 384, outputs: 1536, threads: 2, follower, kernels: 2 };
            let (shape, kernels) = written(&choice);
            assert_eq!((shape.as_str(), kernels.as_str()), (expected, "blocks"));
            assert_eq!(parsed(&shape, &kernels), Some(choice));
        }
        let wrong = [
            ("384x1536", "mkl"),
            ("384x-1 on 1", "mkl"),
            ("ax2 on 1", "mkl"),
            ("3x4 on 1", "best"),
            ("3x4+sigmoid on 1", "mkl"),
        ];
        for (shape, kernels) in wrong {
            assert_eq!(parsed(shape, kernels), None, "{shape} {kernels}");
        }
    }

    #[test]
    fn a_damaged_file_is_as_if_nothing_was_known_and_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learned").join(FILE);
        assert_eq!(read(&path), Ok(Machines::new()));
        let kernels = Kernels::from([("3x4 on 1".to_owned(), "mkl".to_owned())]);
        let machines = Machines::from([(machine(), kernels)]);
        write(&path, &machines).unwrap();
        assert_eq!(read(&path).as_ref(), Ok(&machines));
        fs::write(&path, "= nonsense").unwrap();
        assert!(read(&path).is_err());
        write(&path, &machines).unwrap();
        assert_eq!(read(&path).as_ref(), Ok(&machines));
    }

    #[test]
    fn a_machine_is_named_by_its_cpu_and_libtorch() {
        let name = machine();
        assert!(name.contains(LIBTORCH_VERSION), "{name}");
        assert!(!name.starts_with(" ("), "{name}");
    }
}
