//! What the CPUs of this machine compute in by themselves, as far as a model's precision depends on it.

use std::env;

use crate::model::{ModelDeclaration, Precision};

/// What limits oneDNN, which computes for libtorch, to the instructions of older CPUs; its old name, too.
const LIMITS: [&str; 2] = ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"];
/// Values of it that leave bfloat16 out.
const WITHOUT_BF16: [&str; 8] = [
    "SSE41",
    "AVX",
    "AVX2",
    "AVX2_VNNI",
    "AVX2_VNNI_2",
    "AVX512_MIC",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
];

/// Refuses a precision that CPUs of this machine lack, or only emulate.
///
/// # Errors
/// Why, and what to do.
pub fn check_precision(model: &ModelDeclaration) -> Result<(), (String, String)> {
    match model.precision {
        Precision::Bf16 if model.runtime.is_torch() => check_bf16(),
        Precision::Tf32 if model.runtime.is_torch() => Err((
            "precision = 'tf32' would run on CPU cores, and TF32 is a format of NVIDIA's GPUs"
                .to_owned(),
            "use precision = 'fp32', or run the model on a GPU".to_owned(),
        )),
        _ => Ok(()),
    }
}

fn check_bf16() -> Result<(), (String, String)> {
    let limit = LIMITS.iter().find_map(|name| Some((*name, env::var(name).ok()?)));
    match why_not(has_bf16(), limit.as_ref().map(|(name, value)| (*name, value.as_str()))) {
        None => Ok(()),
        Some(why) => Err((
            format!("precision = 'bf16' would run on CPU cores, and {why}"),
            "use precision = 'fp32', which is faster there, or run the model on a GPU or another CPU"
                .to_owned(),
        )),
    }
}

/// Why bfloat16 is emulated, if it is.
fn why_not(has_bf16: bool, limit: Option<(&str, &str)>) -> Option<String> {
    let is_limit = |value: &str| WITHOUT_BF16.contains(&value.trim().to_uppercase().as_str());
    match limit {
        _ if !has_bf16 => Some(
            "those of this machine have neither AVX512_BF16 nor AMX, so they emulate bf16"
                .to_owned(),
        ),
        Some((name, value)) if is_limit(value) => {
            Some(format!("{name} = {value} keeps them from AVX512_BF16 and AMX"))
        }
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
fn has_bf16() -> bool {
    // CPUs with AMX have both.
    std::arch::is_x86_feature_detected!("avx512bf16")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_bf16() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Folder, TEXT, open};
    use crate::model::ModelOptions;

    #[test]
    fn tf32_is_for_gpus() {
        let (model, _) =
            open(Folder::new(TEXT, &[("model.pt", b""), ("tokenizer.json", b"{}")]).path());
        assert_eq!(check_precision(&model), Ok(()));
        let options = ModelOptions { precision: Some(Precision::Tf32), ..Default::default() };
        let (problem, remedy) =
            check_precision(&model.with_options(&options).unwrap()).unwrap_err();
        assert!(problem.contains("'tf32' would run on CPU cores"), "{problem}");
        assert!(remedy.contains("precision = 'fp32'"), "{remedy}");
    }

    #[test]
    fn bf16_is_for_cpus_that_have_it() {
        assert_eq!(why_not(true, None), None);
        assert!(why_not(false, None).unwrap().contains("neither AVX512_BF16 nor AMX"));
        for (value, runs) in [("avx2", false), ("AVX512_CORE", false), ("AVX512_CORE_BF16", true)] {
            let limit = Some(("ONEDNN_MAX_CPU_ISA", value));
            assert_eq!(why_not(true, limit).is_none(), runs, "{value}");
            assert!(why_not(false, limit).is_some());
        }
    }
}
