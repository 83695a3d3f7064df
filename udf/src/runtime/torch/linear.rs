//! Whose kernels compute the linear layers and the attention of fp32 and bf16 programs on CPUs.
//!
//! libtorch takes MKL for fp32, whose kernels are not the fastest on every CPU. `linear.cpp` gives layers to
//! oneDNN, which libtorch brings along as well, `linear_blocks.cpp` cuts them into blocks for oneDNN's kernels of small
//! products, and `attention.cpp` gives it attention. In bf16 oneDNN computes all layers anyway; there weights are
//! packed once, and what follows a layer is computed with it.

use std::env;
use std::ffi::OsString;

/// The environment variable that decides.
const VARIABLE: &str = "FOREBAY_LINEAR";

/// Whose kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LinearKernels {
    /// For each shape of weights the faster ones, measured when it is first loaded; attention is oneDNN's.
    #[default]
    Measured,
    /// Programs stay as they are: MKL's in fp32.
    Mkl,
    /// oneDNN's layers.
    OneDnn,
    /// oneDNN's of small products in fp32, where the CPU has AVX2.
    Blocks,
}

impl LinearKernels {
    /// As the environment says.
    pub(super) fn wanted() -> Result<Self, String> {
        Self::of(env::var_os(VARIABLE))
    }

    fn of(value: Option<OsString>) -> Result<Self, String> {
        let Some(value) = value.filter(|value| !value.is_empty()) else {
            return Ok(Self::default());
        };
        match value.to_str() {
            Some("measured") => Ok(Self::Measured),
            Some("mkl") => Ok(Self::Mkl),
            Some("onednn") => Ok(Self::OneDnn),
            Some("blocks") => Ok(Self::Blocks),
            _ => Err(format!(
                "{VARIABLE} is '{}': expected measured, mkl, onednn or blocks; or unset it",
                value.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use tch::{Kind, Tensor};

    use super::super::super::Device;
    use super::super::shim::{InferenceMode, LinearChoice, PackedLayers, Program};
    use super::super::{info, shim};
    use super::*;
    use crate::fixture::prepared;
    use crate::model::{Precision, Vectors};

    fn load(path: &Path) -> Program {
        load_in(Precision::Fp32, path)
    }

    fn load_in(precision: Precision, path: &Path) -> Program {
        info().unwrap();
        Program::load(path, Device::Cpu, precision).unwrap()
    }

    /// Of `tests/programs`.
    fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name)
    }

    /// As it is, and with all layers given to oneDNN and in blocks, and attention where the CPU has the instructions.
    fn every(path: &Path, mut expected: PackedLayers) -> [Program; 3] {
        if matches!(shim::cpu_vectors(), Vectors::Plain) {
            expected.attentions = 0;
        }
        let packed = |kernels| {
            let mut program = load(path);
            assert_eq!(program.pack_linear_layers(kernels).unwrap(), expected, "{kernels:?}");
            program
        };
        [load(path), packed(LinearKernels::OneDnn), packed(LinearKernels::Blocks)]
    }

    fn numbers(texts: &serde_json::Value) -> Vec<f32> {
        let texts = texts.as_array().unwrap().iter();
        texts.map(|text| text.as_str().unwrap().parse().unwrap()).collect()
    }

    /// Equal where both are numbers. What is infinite may be no number elsewhere: PyTorch's own kernels
    /// differ in that from CPU to CPU.
    fn assert_equal(found: &Tensor, expected: &Tensor, what: &str) {
        assert_eq!(found.size(), expected.size(), "{what}");
        assert_eq!(found.kind(), Kind::Float, "{what}");
        assert!(found.isfinite().equal(&expected.isfinite()), "{what}: {found:?} {expected:?}");
        let [found, expected] = [found, expected].map(|all| all.nan_to_num(0.0, 0.0, 0.0));
        assert!(found.allclose(&expected, 1e-5, 1e-5, false), "{what}: {found:?} {expected:?}");
    }

    const OUTPUTS: usize = 20;
    /// Those with weights of double precision and with weights that are read elsewhere stay. So do
    /// additions of a multiple and in place.
    const LAYERS: PackedLayers =
        PackedLayers { layers: 21, activations: 6, sums: 6, weights: 19, twice: 0, attentions: 0 };

    /// The program and what it is with oneDNN give what PyTorch computed with the same numbers.
    fn assert_golden(name: &str, shape: &[i64], expected: PackedLayers) {
        let text = std::fs::read_to_string(file(&format!("{name}.json"))).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        let outputs = golden["outputs"].as_array().unwrap();
        let x = numbers(&golden["x"]);
        for program in every(&file(&format!("{name}.pt")), expected) {
            let _mode = InferenceMode::enter();
            let input = Tensor::from_slice(&x).reshape(shape);
            let found = program.forward(&[input], outputs.len()).unwrap();
            assert_eq!(found.len(), outputs.len());
            for (at, (found, expected)) in found.iter().zip(outputs).enumerate() {
                let expected = Tensor::from_slice(&numbers(expected)).reshape(found.size());
                assert_equal(found, &expected, &format!("output {at} of {name}"));
            }
        }
    }

    #[test]
    fn layers_in_every_place_give_what_pytorch_computed() {
        assert_golden("layers", &[-1, 8], LAYERS);
    }

    /// All but the one whose queries see only the keys before them.
    const ATTENTION: PackedLayers =
        PackedLayers { layers: 0, activations: 0, sums: 0, weights: 0, twice: 0, attentions: 25 };

    #[test]
    fn attention_of_every_kind_gives_what_pytorch_computed() {
        assert_golden("attention", &[2, 9, 24], ATTENTION);
    }

    /// As many keys and queries as are in one tile and in several, with zeros behind the last and without, by one thread
    /// and by more.
    #[test]
    fn attention_of_any_length_gives_what_the_program_gives_as_it_is() {
        const OUTPUTS: usize = 26;
        let [plain, packed, _] = every(&file("attention.pt"), ATTENTION);
        for threads in [1, 3] {
            shim::set_threads(threads).unwrap();
            let _mode = InferenceMode::enter();
            for tokens in [1, 7, 8, 16, 17, 64, 65, 100, 130, 200] {
                let input = Tensor::randn([2, tokens, 24], (Kind::Float, tch::Device::Cpu));
                let expected = plain.forward(&[input.shallow_clone()], OUTPUTS).unwrap();
                let found = packed.forward(&[input], OUTPUTS).unwrap();
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert_equal(found, expected, &format!("output {at} for {tokens} tokens"));
                    assert_eq!(found.stride(), expected.stride(), "output {at}");
                }
            }
        }
    }

    /// Whether oneDNN computes in bf16, if only by emulation.
    fn has_bf16() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq");
        #[cfg(not(target_arch = "x86_64"))]
        return false;
    }

    /// In bf16 results are as near as those of PyTorch's own kernels to what it computes of the same rounded numbers with
    /// 32 bits. They are numbers where these are, or are all that PyTorch's are: without AVX-512 its attention in bf16
    /// gives zeros for what is none. Some differ from PyTorch's, as less is rounded on the way.
    fn assert_as_exact(name: &str, shape: &[i64], expected: PackedLayers) {
        info().unwrap();
        let text = std::fs::read_to_string(file(&format!("{name}.json"))).unwrap();
        let golden: serde_json::Value = serde_json::from_str(&text).unwrap();
        let whole = golden["rounded"].as_array().unwrap();
        let plain = load_in(Precision::Bf16, &file(&format!("{name}.pt")));
        let mut packed = load_in(Precision::Bf16, &file(&format!("{name}.pt")));
        assert_eq!(packed.pack_linear_layers(LinearKernels::Measured).unwrap(), expected);
        let _mode = InferenceMode::enter();
        let input =
            Tensor::from_slice(&numbers(&golden["x"])).reshape(shape).to_kind(Kind::BFloat16);
        let run =
            |program: &Program| program.forward(&[input.shallow_clone()], whole.len()).unwrap();
        let (plain, packed) = (run(&plain), run(&packed));
        let mut different = 0;
        for (at, whole) in whole.iter().enumerate() {
            let (plain, packed) = (&plain[at], &packed[at]);
            let what = format!("output {at} of {name}");
            assert_eq!((plain.kind(), plain.stride()), (packed.kind(), packed.stride()), "{what}");
            let whole = Tensor::from_slice(&numbers(whole)).reshape(packed.size());
            let is_same = packed.allclose(plain, 0.0, 0.0, true);
            assert!(
                is_same || packed.isfinite().equal(&whole.isfinite()),
                "{what}: {packed:?} {whole:?}"
            );
            let off = |found: &Tensor| {
                let off = (found.to_kind(Kind::Float) - &whole).abs().nan_to_num(0.0, 0.0, 0.0);
                off.sum(Kind::Double).double_value(&[])
            };
            let (by_pytorch, ours) = (off(plain), off(packed));
            assert!(
                ours <= 1.1 * by_pytorch + 1e-3,
                "{what}: off by {ours}, PyTorch by {by_pytorch}"
            );
            different += i32::from(
                !plain.nan_to_num(0.0, 0.0, 0.0).equal(&packed.nan_to_num(0.0, 0.0, 0.0)),
            );
        }
        assert!(different > 2, "{different} outputs of {name} differ from PyTorch's");
    }

    #[test]
    fn layers_in_bf16_are_as_exact_as_pytorch_has_them() {
        if has_bf16() {
            // No weight is of double precision any more.
            let all =
                PackedLayers { layers: LAYERS.layers + 1, weights: LAYERS.weights + 1, ..LAYERS };
            assert_as_exact("layers", &[-1, 8], all);
        }
    }

    #[test]
    fn attention_in_bf16_is_as_exact_as_pytorch_has_it() {
        info().unwrap();
        // CPUs with AMX leave it to libtorch.
        let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        if !matches!(shim::cpu_vectors(), Vectors::Plain) && !cpu.contains("amx_bf16") {
            assert_as_exact("attention", &[2, 9, 24], ATTENTION);
        }
    }

    #[test]
    fn any_number_of_rows_gives_what_the_program_gives_as_it_is() {
        let [plain, packed @ ..] = every(&file("layers.pt"), LAYERS);
        for threads in [1, 3] {
            shim::set_threads(threads).unwrap();
            let _mode = InferenceMode::enter();
            for rows in [0, 1, 5, 6, 7, 13, 35, 47, 48, 49, 200] {
                let input = Tensor::randn([rows, 8], (Kind::Float, tch::Device::Cpu));
                let expected = plain.forward(&[input.shallow_clone()], OUTPUTS).unwrap();
                for packed in &packed {
                    let found = packed.forward(&[input.shallow_clone()], OUTPUTS).unwrap();
                    for (found, expected) in found.iter().zip(&expected) {
                        assert_equal(found, expected, &format!("{rows} rows, {threads} threads"));
                    }
                }
            }
        }
    }

    /// Of one number each, so that sums are as exact in any order.
    #[test]
    fn gelu_of_numbers_of_any_size_is_what_the_program_gives_as_it_is() {
        let [plain, packed @ ..] = every(&file("layers.pt"), LAYERS);
        let _mode = InferenceMode::enter();
        for size in [1e-30, 1e-3, 1.0, 10.0, 30.0, 1e3, 1e8, 1e30] {
            let row = Tensor::eye(8, (Kind::Float, tch::Device::Cpu)) * size;
            let input = Tensor::cat(&[row.shallow_clone(), -row], 0);
            let expected = plain.forward(&[input.shallow_clone()], OUTPUTS).unwrap();
            for packed in &packed {
                let found = packed.forward(&[input.shallow_clone()], OUTPUTS).unwrap();
                assert_equal(&found[0], &expected[0], &format!("{size}"));
            }
        }
    }

    #[test]
    fn layers_of_any_width_give_what_the_program_gives_as_it_is() {
        let expected = PackedLayers {
            layers: 3,
            activations: 1,
            sums: 1,
            weights: 3,
            twice: 0,
            attentions: 0,
        };
        let [plain, packed @ ..] = every(&file("wide.pt"), expected);
        for (threads, rows) in [(1, 1), (1, 8), (1, 100), (3, 100)] {
            shim::set_threads(threads).unwrap();
            let _mode = InferenceMode::enter();
            let input = Tensor::randn([rows, 1537], (Kind::Float, tch::Device::Cpu));
            let expected = plain.forward(&[input.shallow_clone()], 3).unwrap();
            for packed in &packed {
                let found = packed.forward(&[input.shallow_clone()], 3).unwrap();
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert_equal(found, expected, &format!("output {at} of {rows} rows"));
                }
            }
        }
    }

    #[test]
    fn what_the_program_refuses_is_refused_in_the_same_words() {
        let modules = every(&file("layers.pt"), LAYERS);
        let _mode = InferenceMode::enter();
        for input in [
            Tensor::zeros([2, 4], (Kind::Float, tch::Device::Cpu)),
            Tensor::zeros([2, 8], (Kind::Int64, tch::Device::Cpu)),
        ] {
            let [plain, packed @ ..] = modules.each_ref().map(|program| {
                let error = program.forward(&[input.shallow_clone()], OUTPUTS).unwrap_err();
                error.split("Error: ").last().unwrap_or_default().trim().to_owned()
            });
            assert_eq!(packed, [plain.as_str(); 2]);
        }
    }

    #[test]
    fn the_demo_model_is_given_to_others_and_computes_the_same() {
        let path = prepared("models/all-minilm-l6-v2").join("model.pt");
        let [plain, packed @ ..] = every(
            &path,
            PackedLayers {
                layers: 36,
                activations: 6,
                sums: 12,
                weights: 36,
                twice: 0,
                attentions: 6,
            },
        );
        shim::set_threads(1).unwrap();
        let _mode = InferenceMode::enter();
        let texts = |tokens| {
            let size = [5, tokens];
            let ids = Tensor::randint_low(1000, 20_000, size, (Kind::Int64, tch::Device::Cpu));
            let mask = ids.ones_like();
            let _ = mask.narrow(0, 2, 2).narrow(1, 7, tokens - 7).zero_();
            [ids, mask]
        };
        // So many that attention is computed in parts.
        let long = texts(400);
        let expected = plain.forward(&long, 1).unwrap();
        for packed in &packed {
            let found = packed.forward(&long, 1).unwrap();
            assert_equal(&found[0], &expected[0], "texts of 400 tokens");
        }
        let inputs = texts(24);
        let expected = plain.forward(&inputs, 1).unwrap();
        let expected = &expected[0];
        // Several threads read the same weights.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let inputs = inputs.each_ref().map(Tensor::shallow_clone);
                let expected = expected.shallow_clone();
                let packed = &packed;
                scope.spawn(move || {
                    let _mode = InferenceMode::enter();
                    for packed in packed {
                        let found = packed.forward(&inputs, 1).unwrap();
                        assert_equal(&found[0], &expected, "the demo's model");
                    }
                });
            }
        });
    }

    #[test]
    fn what_another_process_measured_is_not_measured_again() {
        let mut program = load(&file("layers.pt"));
        // More threads than any model here asks for, so that nothing is known yet.
        const THREADS: i64 = 3;
        shim::set_threads(3).unwrap();
        let shapes = [(8, 16), (8, 8), (2, 3), (2, 5), (8, 4)];
        // Whatever follows the layers.
        let choices = (0..5).flat_map(|follower| {
            shapes.map(|(inputs, outputs)| LinearChoice {
                inputs,
                outputs,
                threads: THREADS,
                follower,
                kernels: if (inputs, outputs) == (8, 16) { 2 } else { 0 },
            })
        });
        let choices: Vec<LinearChoice> = choices.collect();
        shim::remember_linear(&choices).unwrap();
        let packed = program.pack_linear_layers(LinearKernels::Measured).unwrap();
        assert_eq!((packed.layers, packed.activations, packed.sums), (2, 2, 0));
        let known = shim::linear_choices().unwrap();
        for choice in choices {
            assert!(known.contains(&choice), "{choice:?} in {known:?}");
        }
    }

    #[test]
    fn programs_without_layers_stay_as_they_are() {
        let mut program = load(&file("several.pt"));
        let none = PackedLayers::default();
        assert_eq!(program.pack_linear_layers(LinearKernels::OneDnn).unwrap(), none);
        assert_eq!(program.pack_linear_layers(LinearKernels::Measured).unwrap(), none);
    }

    #[test]
    fn the_variable_names_the_kernels_and_nothing_else() {
        let of = |text: &str| LinearKernels::of(Some(text.into()));
        assert_eq!(LinearKernels::of(None), Ok(LinearKernels::Measured));
        assert_eq!(of(""), Ok(LinearKernels::Measured));
        assert_eq!(of("measured"), Ok(LinearKernels::Measured));
        assert_eq!(of("mkl"), Ok(LinearKernels::Mkl));
        assert_eq!(of("onednn"), Ok(LinearKernels::OneDnn));
        assert_eq!(of("blocks"), Ok(LinearKernels::Blocks));
        assert_eq!(
            of("oneDNN").unwrap_err(),
            "FOREBAY_LINEAR is 'oneDNN': expected measured, mkl, onednn or blocks; or unset it"
        );
    }
}
