//! Which of a folder's programs holds a precision. The names are those that exporters give them.

use std::fs;
use std::path::Path;

use super::described::Refusal;
use crate::model::location::is_onnx;
use crate::model::options::Precision;

/// The ONNX files of a folder and of its folder `onnx`, in order.
pub(super) fn programs(dir: &Path) -> Vec<String> {
    let mut found = vec![];
    for folder in ["", "onnx/"] {
        let entries = fs::read_dir(dir.join(folder)).into_iter().flatten().flatten();
        let names = entries.filter(|entry| !entry.path().is_dir());
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        found.extend(names.filter(|name| is_onnx(name)).map(|name| format!("{folder}{name}")));
    }
    found.sort();
    found
}

/// The program of a precision.
pub(super) fn choose(
    dir: &Path,
    precision: Precision,
) -> Result<(String, Option<Precision>), Refusal> {
    let programs = programs(dir);
    let fitting: Vec<_> = programs.iter().filter(|p| precision_of(p) == Some(precision)).collect();
    match fitting.as_slice() {
        [program] => Ok((program.to_string(), Some(precision))),
        [] => Err((
            format!("none of its programs holds {precision}: it has {}", programs.join(", ")),
            "choose another precision, or name the program that you mean: LOCATION '…/model.onnx'"
                .to_owned(),
        )),
        [first, ..] => {
            let names: Vec<&str> = fitting.iter().map(|name| name.as_str()).collect();
            Err((
                format!("{} of its programs hold {precision}: {}", names.len(), names.join(", ")),
                format!("name the one that you mean: LOCATION '{}'", dir.join(first).display()),
            ))
        }
    }
}

/// The precision that a file's name says; `None` for programs that are made for a certain device, or
/// packed in a way of their own: who wants one names it.
fn precision_of(program: &str) -> Option<Precision> {
    let name = program.rsplit('/').next().unwrap_or(program).to_lowercase();
    let stem = name.strip_suffix(".onnx").unwrap_or(&name);
    let has = |part: &str| stem.split(['_', '-', '.']).any(|word| word == part);
    let is_any = |parts: &[&str]| parts.iter().any(|part| has(part));
    if is_any(&["o1", "o2", "o3", "o4", "q4", "q4f16", "bnb4", "q8f16"]) {
        return None;
    }
    if is_any(&["int8", "uint8", "qint8", "quint8", "quantized", "quantised"]) {
        return Some(Precision::Int8);
    }
    match (has("fp16"), has("bf16")) {
        (true, _) => Some(Precision::Fp16),
        (_, true) => Some(Precision::Bf16),
        _ => Some(Precision::Fp32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("onnx")).unwrap();
        for file in files {
            fs::write(dir.path().join(file), "").unwrap();
        }
        dir
    }

    #[test]
    fn a_precision_chooses_among_the_names_that_exporters_give() {
        let dir = folder(&[
            "onnx/model.onnx",
            "onnx/model_fp16.onnx",
            "onnx/model_O4.onnx",
            "onnx/model_q4.onnx",
            "onnx/model_qint8_avx512_vnni.onnx",
            "onnx/model.onnx_data",
        ]);
        for (precision, expected) in [
            (Precision::Fp32, "onnx/model.onnx"),
            (Precision::Fp16, "onnx/model_fp16.onnx"),
            (Precision::Int8, "onnx/model_qint8_avx512_vnni.onnx"),
        ] {
            assert_eq!(choose(dir.path(), precision).unwrap().0, expected);
        }
        let (problem, _) = choose(dir.path(), Precision::Bf16).unwrap_err();
        assert!(problem.starts_with("none of its programs holds bf16: it has onnx/model.onnx, "));
    }

    #[test]
    fn two_that_fit_are_both_named() {
        let dir = folder(&["onnx/model_int8.onnx", "onnx/model_quantized.onnx", "model.onnx"]);
        let (problem, remedy) = choose(dir.path(), Precision::Int8).unwrap_err();
        assert_eq!(
            problem,
            "2 of its programs hold int8: onnx/model_int8.onnx, onnx/model_quantized.onnx"
        );
        assert!(remedy.contains("LOCATION '") && remedy.ends_with("onnx/model_int8.onnx'"));
    }
}
