use std::fs;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Int64Array, StringArray};
use arrow::datatypes::{DataType, Float32Type};

use super::super::{enter_thread, load};
use super::*;
use crate::error::ErrorClass;
use crate::fixture::{
    Created, Folder, assert_close, assert_same, created, floats, open, prepared, reference, tensors,
};
use crate::model::{Head, ModelOptions, Precision, RuntimeKind, Share};
use crate::transform;

fn fixture(name: &str) -> std::path::PathBuf {
    let folder = prepared("fixtures/onnx").join(name);
    match folder.join("model.onnx") {
        file if file.exists() => file,
        _ => folder.join("model"),
    }
}

fn run(replica: &dyn Replica, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>, RuntimeError> {
    replica.forward(replica.prepare(columns)?)
}

fn loaded((model, package): &Created) -> Result<Arc<dyn Replica>, RuntimeError> {
    load(model, package, Device::Cpu)
}

fn vectors<const N: usize>(rows: &[[f32; N]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.map(Some).to_vec()));
    Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, N as i32))
}

#[test]
fn onnx_runtime_is_found() {
    let info = info().unwrap();
    assert_eq!(info.version, ONNXRUNTIME_VERSION);
    assert!(info.library_path.is_absolute());
}

/// The program that a fixture is about. What is quantised has steps that depend on the largest number of a
/// batch, and halves are rounded otherwise in another batch.
fn precision_of(name: &str) -> Option<Precision> {
    match name {
        "quantised" => Some(Precision::Int8),
        "half" => Some(Precision::Fp16),
        _ => None,
    }
}

#[test]
fn every_model_gives_what_its_own_library_gives() {
    let folders = fs::read_dir(prepared("fixtures/onnx")).unwrap().map(|entry| entry.unwrap());
    let mut count = 0;
    for folder in folders {
        let (what, folder) = (folder.file_name().into_string().unwrap(), folder.path());
        if !folder.join("reference.json").exists() {
            continue;
        }
        let precision = precision_of(&what);
        let created = created(&fixture(&what), precision).unwrap();
        let (model, package) = &created;
        let inputs = reference(&folder, "inputs", &model.signature.inputs);
        let expected = reference(&folder, "outputs", &model.signature.outputs);
        let columns = transform::load(model, package).unwrap().apply(&inputs).unwrap().columns;
        let replica = loaded(&created).unwrap();
        let _thread = enter_thread(model, Device::Cpu).unwrap();
        let rows = inputs[0].len();
        let together = run(&*replica, &columns).unwrap();
        for (found, expected) in together.iter().zip(&expected) {
            match precision {
                Some(_) => assert_eq!(found.len(), expected.len()),
                None => assert_same(found, expected, &what),
            }
        }
        for row in 0..rows {
            let columns: Vec<ArrayRef> = columns.iter().map(|c| c.slice(row, 1)).collect();
            let alone = run(&*replica, &columns).unwrap();
            for (found, expected) in alone.iter().zip(&expected) {
                let values = expected.slice(row, 1);
                assert_same(found, &arrow::compute::concat(&[&*values]).unwrap(), &what);
            }
        }
        count += 1;
    }
    assert!(count >= 37, "{count} fixtures");
}

#[test]
fn several_threads_share_a_session_and_those_of_more_cores_have_their_own() {
    let mut created = created(&fixture("bert"), None).unwrap();
    let texts = StringArray::from(vec!["Rows arrive", "in batches of their own length", "fox"]);
    let transform = transform::load(&created.0, &created.1).unwrap();
    let tokens = transform.apply(&[Arc::new(texts)]).unwrap().columns;
    for cpus in [1, 2] {
        created.0.resources.cpus = Share::whole(cpus);
        let replica = loaded(&created).unwrap();
        let embed = || {
            let _thread = enter_thread(&created.0, Device::Cpu).unwrap();
            let found = (0..20).map(|_| floats(&run(&*replica, &tokens).unwrap()[0]));
            found.collect::<Vec<_>>()
        };
        let results: Vec<Vec<Vec<f32>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(embed)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let first = results[0][0].clone();
        for found in results.into_iter().flatten() {
            assert_close(&found, &first, 1e-6);
        }
    }
}

/// A package that somebody has written for a program.
fn written(
    program: &Path,
    inputs: &[(&str, &str)],
    outputs: &[(&str, &str)],
    more: &str,
) -> Folder {
    let runtime = format!("kind = \"onnx\"\nprogram = \"model.onnx\"\n{more}");
    let bytes = fs::read(program).unwrap();
    Folder::new(&tensors(inputs, outputs, &runtime), &[("model.onnx", &bytes)])
}

fn refusal(folder: &Folder) -> String {
    let (model, package) = open(folder.path());
    load(&model, &package, Device::Cpu).unwrap_err().to_string()
}

#[test]
fn a_described_package_may_rename_and_leave_out_results() {
    let program = fixture("logistic");
    let folder = written(
        &program,
        &[("x", "FLOAT[4]")],
        &[("p", "FLOAT[3]")],
        "results = [\"probabilities\"]",
    );
    let (model, package) = open(folder.path());
    let replica = load(&model, &package, Device::Cpu).unwrap();
    let found = run(&*replica, &[vectors(&[[1.0, 0.0, 0.0, 0.0]; 2])]).unwrap();
    assert_eq!(found.len(), 1);
    let sum: f32 = floats(&found[0])[..3].iter().sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
}

#[test]
fn programs_that_differ_from_their_description_are_refused() {
    let program = fixture("logistic");
    let outputs = [("label", "BIGINT")];
    for (inputs, outputs, more, expected) in [
        (&[("x", "FLOAT[5]")][..], &outputs[..], "", "it takes 'X' as f32 [4], and the package"),
        (&[("x", "BIGINT")], &outputs, "", "and the package declares BIGINT"),
        (
            &[("x", "FLOAT[4]"), ("y", "FLOAT")],
            &outputs,
            "",
            "it takes 1 inputs (X), and the package",
        ),
        (
            &[("x", "FLOAT[4]")],
            &outputs,
            "results = [\"score\"]",
            "it has no result 'score'; it has label, probabilities",
        ),
    ] {
        let message = refusal(&written(&program, inputs, outputs, more));
        assert!(message.starts_with("model 'm': model.onnx cannot be loaded: "), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let folder = written(&program, &[("x", "FLOAT[4]")], &[("label", "FLOAT")], "");
    let (model, package) = open(folder.path());
    let replica = load(&model, &package, Device::Cpu).unwrap();
    let error = run(&*replica, &[vectors(&[[0.0; 4]])]).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Model);
    let expected =
        "output 'label' is declared as FLOAT for 1 rows but the program returned i64 [1]";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn what_onnx_runtime_refuses_names_a_remedy() {
    let outputs = [("b", "FLOAT[2]")];
    let folder = written(&fixture("refused/opset"), &[("a", "FLOAT[2]")], &outputs, "");
    let message = refusal(&folder);
    assert!(
        message.contains("export it with an older opset, or use a newer ONNX Runtime"),
        "{message}"
    );

    let whole = fs::read(fixture("bert").join("onnx/model.onnx")).unwrap();
    let files: [(&str, &[u8]); 1] = [("model.onnx", &whole[..whole.len() / 2])];
    let runtime = "kind = \"onnx\"\nprogram = \"model.onnx\"";
    let folder = Folder::new(&tensors(&[("a", "FLOAT[2]")], &outputs, runtime), &files);
    let message = refusal(&folder);
    assert!(message.contains("the file is damaged or no ONNX model"), "{message}");
    assert!(message.ends_with("fetch it again"), "{message}");
    assert!(!message.contains('\n') && !message.contains(".cc"), "{message}");
}

#[test]
fn a_program_that_fails_on_any_row_is_broken_and_on_one_its_row_is_at_fault() {
    let created = created(&fixture("refused/shape"), None).unwrap();
    let replica = loaded(&created).unwrap();
    let columns = [vectors(&[[1.0, 2.0]; 3]), vectors(&[[1.0, 2.0, 3.0]; 3])];
    let error = run(&*replica, &columns).unwrap_err();
    assert!(matches!(error, RuntimeError::Broken { .. }), "{error}");

    let folder = written(&fixture("refused/index"), &[("i", "BIGINT")], &[("row", "FLOAT[2]")], "");
    let (model, package) = open(folder.path());
    let replica = load(&model, &package, Device::Cpu).unwrap();
    let ids = |ids: Vec<i64>| -> [ArrayRef; 1] { [Arc::new(Int64Array::from(ids))] };
    let error = run(&*replica, &ids(vec![0, 7])).unwrap_err();
    assert!(matches!(error, RuntimeError::Program { rows: 2, .. }), "{error}");
    assert_eq!(floats(&run(&*replica, &ids(vec![1])).unwrap()[0]), [2.0, 3.0]);
}

#[test]
fn a_gpu_that_cannot_be_used_is_an_error_and_no_cpu() {
    let (model, package) = created(&fixture("logistic"), None).unwrap();
    let error = load(&model, &package, Device::Cuda(0)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Device);
    let message = error.to_string();
    assert!(message.starts_with("device 'cuda:0' cannot be used: "), "{message}");
    assert!(message.contains("onnxruntime-gpu") && message.contains("gpus = 0"), "{message}");
}

#[test]
fn another_precision_than_the_programs_is_refused() {
    let (model, _) = created(&fixture("quantised"), None).unwrap();
    assert_eq!(model.precision, Precision::Fp32);
    let options = |precision| ModelOptions { precision: Some(precision), ..Default::default() };
    assert!(model.clone().with_options(&options(Precision::Fp32)).is_ok());
    let message = model.with_options(&options(Precision::Int8)).unwrap_err().to_string();
    assert!(
        message.contains("expected fp32, which the program onnx/model.onnx of model 'm' holds")
            && message.contains("WITH (precision = 'int8')"),
        "{message}"
    );
}

#[test]
fn texts_are_strings_of_a_tensor() {
    let created = created(&fixture("mixed"), None).unwrap();
    let types: Vec<DataType> =
        created.0.signature.inputs.iter().map(|field| field.data_type().clone()).collect();
    assert_eq!(types, [DataType::Utf8, DataType::Float32, DataType::Float32]);
    let replica = loaded(&created).unwrap();
    let columns: [ArrayRef; 3] = [
        Arc::new(StringArray::from(vec!["no\0such"])),
        Arc::new(arrow::array::Float32Array::from(vec![1.0])),
        Arc::new(arrow::array::Float32Array::from(vec![1.0])),
    ];
    // C strings hold no NUL.
    let error = run(&*replica, &columns).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Data, "{error}");
    assert!(created.0.signature.outputs[0].name() == "label");
    let _ = columns[0].as_string::<i32>();
}

#[test]
fn outputs_with_labels_are_checked_against_them() {
    let source = fixture("package-tokens-bert");
    let files = ["model.onnx", "tokenizer.json"].map(|name| (name, fs::read(source.join(name))));
    let files = files.map(|(name, bytes)| (name, bytes.unwrap()));
    let description = fs::read_to_string(source.join("model.toml")).unwrap();
    let description = description.split("[files]").next().unwrap();
    let refusal = |labels: &[u8]| {
        let mut all: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        all.push(("labels.json", labels));
        let folder = Folder::new(description, &all);
        let (model, package) = open(folder.path());
        let tokens = transform::load(&model, &package).unwrap();
        let texts = StringArray::from(vec!["Rows arrive in batches, and each batch is as long as"]);
        let tokens = tokens.apply(&[Arc::new(texts)]).unwrap();
        let replica = load(&model, &package, Device::Cpu);
        replica.and_then(|replica| run(&*replica, &tokens.columns)).unwrap_err().to_string()
    };
    let message = refusal(b"{}");
    assert!(message.contains("labels.json cannot be loaded") && message.contains("a JSON list"));
    let message = refusal(br#"["O"]"#);
    assert!(
        message.contains("output 'labels' is declared as STRING[] of 1 labels but the program")
    );
    assert!(message.contains("returned the index "), "{message}");
}

#[test]
fn a_matrix_that_does_not_fit_its_program_is_an_error() {
    let source = fixture("dense");
    let (mut created, package) = created(&source, None).unwrap();
    let RuntimeKind::Onnx { head: Some(Head::Pool { dense, .. }), .. } = &mut created.runtime
    else {
        panic!("{:?}", created.runtime)
    };
    dense.remove(0);
    let texts = StringArray::from(vec!["Rows arrive"]);
    let tokens = transform::load(&created, &package).unwrap().apply(&[Arc::new(texts)]).unwrap();
    let replica = load(&created, &package, Device::Cpu).unwrap();
    let error = run(&*replica, &tokens.columns).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Model);
    assert!(
        error.to_string().contains("vectors of 20 numbers, which linear.weight takes"),
        "{error}"
    );
}

#[test]
fn operations_are_those_of_a_programs_weights() {
    let load =
        |name: &str, precision| loaded(&created(&fixture(name), precision).unwrap()).unwrap();
    // Two layers of 4 matrices of 32 x 32, and 2 of 32 x 64.
    let weights = f64::from(2 * (4 * 32 * 32 + 2 * 32 * 64));
    for (name, precision) in [
        ("bert", None),
        ("package-bert", None),
        ("package-int8", None),
        ("half", precision_of("half")),
    ] {
        assert_eq!(load(name, precision).operations(3, 60), Some(2.0 * 60.0 * weights), "{name}");
    }
    // Of each row once: what is in front of the labels.
    let scorer = load("classification-bert", None).operations(3, 60).unwrap();
    let head = f64::from(32 * 32 + 32 * 3);
    assert_eq!(scorer, 2.0 * (60.0 * weights + 3.0 * head));
    for name in ["images", "logistic"] {
        assert_eq!(load(name, None).operations(3, 3), None, "{name}");
    }
}
