//! Which program of its package a model runs on a device: native code that fits it, or TorchScript.

use std::fmt;
use std::thread::available_parallelism;

use super::super::replica::Device;
use super::failure::load_error;
use super::library;
use super::shim::{self, Program};
use crate::error::RuntimeError;
use crate::model::{Architecture, Compiled, ModelDeclaration, Package, RuntimeKind};

/// Calls at a time that are prepared for on a GPU; more wait for one another, as they would for the device.
const CALLS_ON_GPU: usize = 4;

/// The program that a device takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// File in the package.
    pub program: String,
    /// What it is, and why it is that one.
    pub kind: Kind,
}

/// What a program is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The only one that there is.
    Only,
    /// TorchScript, and why it is not native code.
    Script {
        /// What does not fit, or who refused.
        because: String,
    },
    /// Native code.
    Native {
        /// The TorchScript file that could run instead.
        script: String,
        /// Whether it may be loaded.
        is_allowed: bool,
    },
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match &self.kind {
            Kind::Only => write!(f, "{program}"),
            Kind::Script { because } => write!(f, "{program} (TorchScript), because {because}"),
            Kind::Native { is_allowed: true, .. } => write!(f, "{program} (native code)"),
            Kind::Native { .. } => {
                write!(f, "{program} (native code), once allow_native is true or false")
            }
        }
    }
}

impl Taken {
    /// What this device takes of a model that libtorch runs.
    ///
    /// # Errors
    /// [`RuntimeError::Library`] or [`RuntimeError::Device`].
    pub fn by(model: &ModelDeclaration, device: Device) -> Result<Self, RuntimeError> {
        let (script, compiled) = match &model.runtime {
            RuntimeKind::Aoti { program, compiled } => (program, compiled),
            RuntimeKind::Torch { program } => {
                return Ok(Self { program: program.clone(), kind: Kind::Only });
            }
            RuntimeKind::Onnx { .. } | RuntimeKind::Emulated { .. } => {
                return Ok(Self { program: String::new(), kind: Kind::Only });
            }
        };
        let as_script =
            |because: String| Self { program: script.clone(), kind: Kind::Script { because } };
        if model.allow_native == Some(false) {
            return Ok(as_script("allow_native is false".to_owned()));
        }
        let on = architecture_of(device)?;
        let torch = &library::ensure_loaded()?.version;
        Ok(match Compiled::choose(compiled, on, torch, model.precision) {
            Ok(found) => {
                let is_allowed = model.allow_native == Some(true);
                let script = script.clone();
                Self { program: found.program.clone(), kind: Kind::Native { script, is_allowed } }
            }
            Err(because) => as_script(because),
        })
    }

    /// Whether it is native code.
    pub(super) fn is_native(&self) -> bool {
        matches!(self.kind, Kind::Native { .. })
    }

    /// Loads it, if it may be.
    ///
    /// # Errors
    /// [`RuntimeError`] of every kind but those of a batch.
    pub(super) fn load(
        &self,
        model: &ModelDeclaration,
        package: &Package,
        device: Device,
    ) -> Result<Program, RuntimeError> {
        let path = package.file(&self.program);
        let failed = |message: &String| load_error(model, &self.program, device, message);
        // Weights may still be being converted.
        let loaded = |program| shim::synchronize(device).map(|()| program);
        match &self.kind {
            Kind::Only => {}
            Kind::Script { because } => {
                tracing::info!(
                    "model '{}' runs {} on {device}: {because}",
                    model.name,
                    self.program
                );
            }
            Kind::Native { script, is_allowed: false } => {
                return Err(RuntimeError::Native {
                    model: model.name.clone(),
                    file: self.program.clone(),
                    script: script.clone(),
                });
            }
            Kind::Native { script, is_allowed: true } => {
                let program = Program::load_compiled(&path, device, calls(device));
                return program.and_then(loaded).map_err(|message| match failed(&message) {
                    RuntimeError::Load { model, file, problem } => {
                        let problem = format!(
                            "{problem}; compile it on a machine like this one (`forebay model export \
                             --compile`), or run {script} instead: allow_native = false"
                        );
                        RuntimeError::Load { model, file, problem }
                    }
                    other => other,
                });
            }
        }
        let program = Program::load(&path, device, model.precision);
        program.and_then(loaded).map_err(|message| failed(&message))
    }
}

/// How many threads may run native code at the same time. Its weights are there once.
fn calls(device: Device) -> usize {
    match device {
        Device::Cpu | Device::Emulated(_) => available_parallelism().map_or(1, usize::from),
        Device::Cuda(_) => CALLS_ON_GPU,
    }
}

/// Whose instructions a device has.
fn architecture_of(device: Device) -> Result<Architecture, RuntimeError> {
    library::usable(device)?;
    let info = library::ensure_loaded()?;
    let Device::Cuda(ordinal) = device else { return Ok(Architecture::Cpu(info.vectors)) };
    let found = info.cuda.iter().flatten().find(|found| found.ordinal == ordinal);
    let found = found.ok_or_else(|| library::device_problem(device, "it is gone".to_owned()))?;
    let (major, minor) = found.compute_capability;
    Ok(Architecture::Cuda { major, minor })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;
    use std::thread;

    use arrow::array::{ArrayRef, AsArray, ListArray};
    use arrow::datatypes::{Float32Type, Int32Type};

    use super::super::super::replica::Replica;
    use super::super::super::{enter_thread, load};
    use super::*;
    use crate::fixture::{Folder, open, prepared};
    use crate::model::{Precision, Vectors};

    const PACKAGE: &str = "fixtures/compiled/package";

    /// The model of the fixture, with native code for this machine's CPUs.
    fn model(allow_native: Option<bool>) -> (ModelDeclaration, Package) {
        let (model, package) = open(&prepared(PACKAGE));
        (ModelDeclaration { allow_native, ..model }, package)
    }

    fn native_file() -> String {
        let RuntimeKind::Aoti { compiled, .. } = model(None).0.runtime else { panic!("no aoti") };
        compiled[0].program.clone()
    }

    /// The fixture's package with other native code.
    fn with_native(code: &[u8]) -> Folder {
        let files = ["model.pt", "tokenizer.json", &native_file()];
        let mut all: Vec<(&str, Vec<u8>)> = files
            .iter()
            .map(|file| (*file, fs::read(prepared(PACKAGE).join(file)).unwrap()))
            .collect();
        all[2].1 = code.to_owned();
        let text = fs::read_to_string(prepared(PACKAGE).join("model.toml")).unwrap();
        let (text, _) = text.split_once("[files]").unwrap();
        let all: Vec<(&str, &[u8])> = all.iter().map(|(name, code)| (*name, &code[..])).collect();
        Folder::new(text, &all)
    }

    /// Lists of tokens, one for each length.
    fn tokens(lengths: &[usize]) -> Vec<ArrayRef> {
        let row = |(at, length): (usize, &usize)| {
            Some((0..*length).map(|token| Some(5 + ((at + token) % 40) as i32)).collect::<Vec<_>>())
        };
        let rows = lengths.iter().enumerate().map(row);
        vec![Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))]
    }

    /// In one batch.
    fn run(replica: &dyn Replica, model: &ModelDeclaration, lengths: &[usize]) -> Vec<f32> {
        let _thread = enter_thread(model, Device::Cpu).unwrap();
        let batch = replica.prepare(&tokens(lengths)).unwrap();
        let found = replica.forward(batch).unwrap();
        let values = found[0].as_fixed_size_list().values();
        values.as_primitive::<Float32Type>().values().to_vec()
    }

    fn assert_near(found: &[f32], expected: &[f32], what: &str) {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-5, "{what}: {found}, expected {expected}");
        }
    }

    #[test]
    fn native_code_is_loaded_if_it_is_allowed_and_named_with_the_remedy_if_not() {
        let (unsaid, package) = model(None);
        let error = load(&unsaid, &package, Device::Cpu).unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("native", false));
        let message = error.to_string();
        for part in [native_file().as_str(), "native code", "allow_native = true", "--allow-native"]
        {
            assert!(message.contains(part), "{message}");
        }
        assert!(message.contains("allow_native = false runs model.pt instead"), "{message}");
        let taken = |allowed| Taken::by(&model(allowed).0, Device::Cpu).unwrap();
        assert_eq!(taken(Some(true)).program, native_file());
        assert_eq!(taken(Some(false)).program, "model.pt");
        assert_eq!(
            taken(Some(false)).to_string(),
            "model.pt (TorchScript), because allow_native is false"
        );
        load(&model(Some(false)).0, &package, Device::Cpu).unwrap();
    }

    #[test]
    fn native_code_gives_what_torchscript_gives_for_any_rows_and_lengths() {
        let (native, package) = model(Some(true));
        let (script, _) = model(Some(false));
        let [one, other] = [&native, &script].map(|m| load(m, &package, Device::Cpu).unwrap());
        // One row, as many as the example had, lengths that it had and that it had not.
        let batches: [&[usize]; 7] =
            [&[1], &[6], &[7], &[2, 2], &[6, 5, 3], &[31, 1, 8, 8, 2], &[16; 40]];
        for lengths in batches {
            let (found, expected) = (run(&*one, &native, lengths), run(&*other, &script, lengths));
            assert_near(&found, &expected, &format!("{lengths:?}"));
        }
        assert_eq!(one.operations(3, 48), None);
        assert!(other.operations(3, 48).is_some());
    }

    #[test]
    fn threads_run_native_code_at_the_same_time() {
        let (native, package) = model(Some(true));
        let replica = load(&native, &package, Device::Cpu).unwrap();
        let lengths = |at: usize| vec![at + 1; 3];
        let expected: Vec<Vec<f32>> =
            (0..8).map(|at| run(&*replica, &native, &lengths(at))).collect();
        thread::scope(|scope| {
            for (at, expected) in expected.iter().enumerate() {
                let (replica, native) = (&replica, &native);
                scope.spawn(move || {
                    for _ in 0..20 {
                        assert_near(
                            &run(&**replica, native, &lengths(at)),
                            expected,
                            "in a thread",
                        );
                    }
                });
            }
        });
    }

    #[test]
    fn code_for_other_devices_releases_and_precisions_is_left_and_the_reason_said() {
        let (model, package) = model(Some(true));
        let RuntimeKind::Aoti { program, compiled } = model.runtime.clone() else {
            panic!("no aoti")
        };
        let change = |change: fn(&mut Compiled)| {
            let mut compiled = compiled.clone();
            change(&mut compiled[0]);
            let runtime = RuntimeKind::Aoti { program: program.clone(), compiled };
            ModelDeclaration { runtime, ..model.clone() }
        };
        let cases = [
            (
                change(|one| one.architecture = Architecture::Cuda { major: 9, minor: 0 }),
                "is for sm_90",
            ),
            (change(|one| one.torch = "2.10.0".to_owned()), "is of torch 2.10.0, here is 2.11.0"),
            (change(|one| one.precision = Precision::Bf16), "is in bf16, the model runs in fp32"),
        ];
        for (model, reason) in cases {
            let taken = Taken::by(&model, Device::Cpu).unwrap();
            assert_eq!(taken.program, "model.pt");
            assert!(taken.to_string().contains(reason), "{taken}");
            let replica = load(&model, &package, Device::Cpu).unwrap();
            assert!(!run(&*replica, &model, &[3]).is_empty());
        }
    }

    #[test]
    fn damaged_code_is_an_error_with_the_remedy() {
        let whole = fs::read(prepared(PACKAGE).join(native_file())).unwrap();
        for code in [&[][..], b"no archive at all", &whole[..whole.len() / 2], &whole[1000..]] {
            let folder = with_native(code);
            let (mut model, package) = open(folder.path());
            model.allow_native = Some(true);
            let message = load(&model, &package, Device::Cpu).unwrap_err().to_string();
            assert!(message.contains(&native_file()), "{message}");
            assert!(message.contains("run model.pt instead: allow_native = false"), "{message}");
            assert!(!message.contains('\n'), "{message}");
            model.allow_native = Some(false);
            load(&model, &package, Device::Cpu).unwrap();
        }
    }

    #[test]
    fn code_that_is_not_what_the_package_pins_is_not_loaded() {
        let folder = with_native(b"one");
        fs::write(folder.path().join(native_file()), b"other").unwrap();
        let error = Package::open(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains(&native_file()) && error.contains("has changed"), "{error}");
    }

    #[test]
    fn vectors_are_those_that_libtorch_uses() {
        let info = library::ensure_loaded().unwrap();
        let has = |feature| fs::read_to_string("/proc/cpuinfo").unwrap().contains(feature);
        match std::env::var("ATEN_CPU_CAPABILITY") {
            Ok(_) => {}
            Err(_) if has(" avx512vl ") && has(" avx512dq ") => {
                assert_eq!(info.vectors, Vectors::Avx512);
            }
            Err(_) if has(" avx2 ") => assert_eq!(info.vectors, Vectors::Avx2),
            Err(_) => assert_eq!(info.vectors, Vectors::Plain),
        }
    }
}
