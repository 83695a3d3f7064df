//! Real programs on the CPU: those that `make setup` exports, and small ones traced here.

mod lane;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use arrow::array::ArrayRef;
use arrow::array::{
    Array, AsArray, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, StringArray,
    UInt8Array,
};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type};
use tch::{CModule, Kind, Tensor};

use super::linear::LinearKernels;
use super::*;
use crate::error::ErrorClass;
use crate::fixture::{
    Folder, assert_close, assert_same, floats, open, prepared, reference, tensors,
};
use crate::model::Precision;
use crate::transform;

const TORCH: &str = "kind = \"torch\"\nprogram = \"model.pt\"";

type Columns<'a> = &'a [(&'a str, &'a str)];

/// Traces `program` with the example inputs and saves it as a package.
fn traced(
    inputs: Columns<'_>,
    outputs: Columns<'_>,
    examples: &[Tensor],
    program: impl Fn(&[Tensor]) -> Vec<Tensor>,
) -> Folder {
    let folder = Folder::new("", &[]);
    let module =
        CModule::create_by_tracing("M", "forward", examples, &mut |inputs: &[Tensor]| {
            program(inputs)
        });
    module.unwrap().save(folder.path().join("model.pt")).unwrap();
    folder.describe(&tensors(inputs, outputs, TORCH), &["model.pt"]);
    folder
}

/// A package of a program from `tests/programs`.
fn made(name: &str, inputs: Columns<'_>, outputs: Columns<'_>) -> Folder {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let bytes = fs::read(programs.join(name)).unwrap();
    Folder::new(&tensors(inputs, outputs, TORCH), &[("model.pt", &bytes)])
}

/// `[rows, 2]` floats for tracing.
fn example() -> Tensor {
    info().unwrap();
    Tensor::from_slice2(&[[1.0f32, 2.0], [3.0, 4.0]])
}

fn load_on_cpu(folder: &Folder) -> Result<Arc<dyn Replica>, RuntimeError> {
    let (model, package) = open(folder.path());
    super::super::load(&model, &package, Device::Cpu)
}

fn run(replica: &dyn Replica, columns: &[ArrayRef]) -> Result<Vec<ArrayRef>, RuntimeError> {
    replica.forward(replica.prepare(columns)?)
}

fn vectors<const N: usize>(rows: &[[f32; N]]) -> ArrayRef {
    let rows = rows.iter().map(|row| Some(row.map(Some).to_vec()));
    Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, N as i32))
}

#[test]
fn libtorch_is_found_and_says_why_there_is_no_cuda() {
    let info = info().unwrap();
    assert_eq!(info.version, "2.11.0");
    assert!(info.library_path.ends_with("libtorch_cpu.so"), "{}", info.library_path.display());
    assert!(info.library_path.is_absolute());
    match &info.cuda {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(reason) => assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}"),
    }
}

#[test]
fn every_exported_model_gives_what_its_own_library_gives() {
    let folders = fs::read_dir(prepared("fixtures")).unwrap().map(|entry| entry.unwrap());
    let mut count = 0;
    for folder in folders {
        let (what, folder) = (folder.file_name().into_string().unwrap(), folder.path());
        // ResNet-18 and its many images are tested in SQL.
        if !folder.join("reference.json").exists() {
            continue;
        }
        let (mut model, package) = open(&folder.join("package"));
        model.allow_native = Some(true);
        let inputs = reference(&folder, "inputs", &model.signature.inputs);
        let expected = reference(&folder, "outputs", &model.signature.outputs);
        let rows = inputs[0].len();
        let transform = transform::load(&model, &package).unwrap();
        let columns = transform.apply(&inputs).unwrap().columns;
        info().unwrap();
        for kernels in [LinearKernels::Mkl, LinearKernels::OneDnn, LinearKernels::Blocks] {
            let device = Device::Cpu;
            let replica =
                replica::TorchReplica::load(&model, &package, device, Ok(kernels)).unwrap();
            let _thread = super::super::enter_thread(&model, device).unwrap();

            let batch = replica.prepare(&columns).unwrap();
            let lists = columns[0].as_list_opt::<i32>();
            let longest = lists.map_or(1, |lists| lists.offsets().lengths().max().unwrap());
            assert_eq!(batch.padded, rows * longest, "{what}");
            let together = replica.forward(batch).unwrap();
            for (found, expected) in together.iter().zip(&expected) {
                assert_same(found, expected, &what);
            }

            // Neither padding nor neighbors count.
            for row in 0..rows {
                let columns: Vec<ArrayRef> = columns.iter().map(|c| c.slice(row, 1)).collect();
                let alone = run(&replica, &columns).unwrap();
                for (found, together) in alone.iter().zip(&together) {
                    assert_same(found, &together.slice(row, 1), &what);
                }
            }
        }
        count += 1;
    }
    assert!(count >= 20, "{count} fixtures");
}

/// A classifier of two numbers: the program's index is the first of them.
fn labelled(labels: &str, output: &str) -> Folder {
    let columns = [("x", "FLOAT[2]")];
    let folder = traced(&columns, &[("y", "BIGINT")], &[example()], |x| {
        vec![x[0].select(1, 0).to_kind(Kind::Int64)]
    });
    fs::write(folder.path().join("labels.json"), labels).unwrap();
    let description = tensors(&columns, &[("y", "STRING")], TORCH)
        .replace("name = \"y\"\n", &format!("name = \"y\"\n{output}\n"));
    folder.describe(&description, &["model.pt", "labels.json"]);
    folder
}

#[test]
fn numbers_become_their_labels() {
    let folder = labelled(r#"["no", "ja ✓"]"#, "labels = \"labels.json\"");
    let replica = load_on_cpu(&folder).unwrap();
    let found = run(&*replica, &[vectors(&[[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])]).unwrap();
    assert_eq!(found[0].as_string::<i32>(), &StringArray::from(vec!["ja ✓", "no", "ja ✓"]));

    for unknown in [2.0, -1.0] {
        let error = run(&*replica, &[vectors(&[[unknown, 0.0]])]).unwrap_err().to_string();
        let expected =
            format!("declared as STRING of 2 labels but the program returned the index {unknown}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn labels_that_are_no_list_of_texts_are_named() {
    let error = load_on_cpu(&labelled("{}", "labels = \"labels.json\"")).unwrap_err().to_string();
    assert!(error.starts_with("model 'm': labels.json cannot be loaded: "), "{error}");
    assert!(error.ends_with("expected a JSON list of texts"), "{error}");
}

#[test]
fn vectors_get_the_shape_that_the_program_takes() {
    let inputs = [("x", "FLOAT[6]")];
    info().unwrap();
    let example = Tensor::from_slice(&[0_f32; 12]).reshape([2, 1, 2, 3]);
    let folder = traced(&inputs, &[("y", "FLOAT[3]")], &[example], |x| {
        vec![x[0].sum_dim_intlist([1_i64, 2].as_slice(), false, Kind::Float)]
    });
    let description = tensors(&inputs, &[("y", "FLOAT[3]")], TORCH)
        .replace("FLOAT[6]\"\n", "FLOAT[6]\"\nshape = [1, 2, 3]\n");
    folder.describe(&description, &["model.pt"]);
    let replica = load_on_cpu(&folder).unwrap();
    let rows = vectors(&[[9.0; 6], [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]]);
    assert_eq!(floats(&run(&*replica, &[rows.slice(1, 1)]).unwrap()[0]), [11.0, 22.0, 33.0]);
}

#[test]
fn bytes_reach_the_program_as_bytes() {
    let (inputs, outputs) = ([("x", "UINT8[2]"), ("n", "UINT8")], [("y", "INT[3]")]);
    info().unwrap();
    let bytes = |shape: &[i64]| Tensor::zeros(shape, (Kind::Uint8, tch::Device::Cpu));
    // There is no such operation on floats.
    let folder = traced(&inputs, &outputs, &[bytes(&[3, 2]), bytes(&[3])], |x| {
        vec![Tensor::cat(&[&x[0], &x[1].unsqueeze(1)], 1).bitwise_not()]
    });
    let replica = load_on_cpu(&folder).unwrap();
    let rows = [Some(vec![Some(0), Some(1)]), Some(vec![Some(128), Some(255)])];
    let vectors = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, 2);
    let columns: [ArrayRef; 2] = [Arc::new(vectors), Arc::new(UInt8Array::from(vec![7, 200]))];
    let whole = run(&*replica, &columns).unwrap();
    let rest: Vec<ArrayRef> = columns.iter().map(|column| column.slice(1, 1)).collect();
    let rest = run(&*replica, &rest).unwrap();
    let ints = |columns: &[ArrayRef]| {
        columns[0].as_fixed_size_list().values().as_primitive::<Int32Type>().values().to_vec()
    };
    assert_eq!(ints(&whole), [255, 254, 248, 127, 0, 55]);
    assert_eq!(ints(&rest), [127, 0, 55]);
}

#[test]
fn the_demo_model_gives_unit_vectors_from_several_threads() {
    let (model, package) = open(&prepared("models/all-minilm-l6-v2"));
    let transform = transform::load(&model, &package).unwrap();
    let texts = StringArray::from(vec!["a cat sat", "a kitten was sitting", "quarterly revenue"]);
    let tokens = transform.apply(&[Arc::new(texts)]).unwrap().columns;
    let replica = super::super::load(&model, &package, Device::Cpu).unwrap();
    let embed = || {
        let _thread = super::super::enter_thread(&model, Device::Cpu).unwrap();
        floats(&run(&*replica, &tokens).unwrap()[0])
    };
    let results: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(embed)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(results.iter().all(|result| *result == results[0]));
    let dot = |a: usize, b: usize| -> f32 {
        let row = |i: usize| &results[0][i * 384..(i + 1) * 384];
        row(a).iter().zip(row(b)).map(|(x, y)| x * y).sum()
    };
    assert!((dot(0, 0) - 1.0).abs() < 1e-5);
    assert!(dot(0, 1) > 0.5 && dot(0, 2) < 0.2, "{} {}", dot(0, 1), dot(0, 2));
}

#[test]
fn inputs_and_outputs_are_not_copied() {
    info().unwrap();
    let column = vectors(&[[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]]).slice(1, 2);
    // SAFETY: the column outlives the tensor.
    let tensor = unsafe { tensor::borrow_column(&column) }.unwrap();
    let values =
        column.as_fixed_size_list().values().as_primitive::<Float32Type>().values().clone();
    assert_eq!(tensor.data_ptr().cast_const().cast(), values.as_ptr());
    assert_eq!(tensor.size(), [2, 2]);

    let output = tensor.f_add_scalar(1.0).unwrap();
    let address = output.data_ptr().cast_const().cast();
    let field = Arc::new(arrow::datatypes::Field::new("o", column.data_type().clone(), true));
    let Ok(result) = tensor::to_column(output, &field, 2, &[tensor]) else { panic!("mismatch") };
    let values =
        result.as_fixed_size_list().values().as_primitive::<Float32Type>().values().clone();
    assert_eq!(values.as_ptr(), address);
    assert_eq!(values.to_vec(), [2.0, 3.0, 4.0, 5.0]);
    // The memory stays while any slice of it does.
    let slice = result.slice(1, 1);
    drop((result, values));
    assert_eq!(floats(&slice), [4.0, 5.0]);
}

#[test]
fn a_result_that_is_an_input_outlives_it() {
    let folder = traced(&[("x", "FLOAT[2]")], &[("y", "FLOAT[2]")], &[example()], |x| {
        vec![x[0].shallow_clone()]
    });
    let replica = load_on_cpu(&folder).unwrap();
    let input = vectors(&[[1.0, 2.0]]);
    let address = input.as_fixed_size_list().values().to_data().buffers()[0].as_ptr();
    let output = run(&*replica, &[Arc::clone(&input)]).unwrap();
    assert_ne!(output[0].as_fixed_size_list().values().to_data().buffers()[0].as_ptr(), address);
    drop(input);
    assert_eq!(floats(&output[0]), [1.0, 2.0]);
}

const SEVERAL: [(&str, &str); 3] = [("x", "FLOAT[2]"), ("n", "BIGINT"), ("b", "BOOLEAN")];

fn several_columns() -> [ArrayRef; 3] {
    [
        vectors(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        Arc::new(Int64Array::from(vec![1, 2, i64::MAX / 2])),
        Arc::new(BooleanArray::from(vec![true, false, true])),
    ]
}

#[test]
fn several_inputs_and_outputs_of_several_types() {
    let outputs =
        [("sum", "FLOAT"), ("double", "BIGINT"), ("not", "BOOLEAN"), ("column", "DOUBLE")];
    let replica = load_on_cpu(&made("several.pt", &SEVERAL, &outputs)).unwrap();
    let found = run(&*replica, &several_columns()).unwrap();
    assert_eq!(floats(&found[0]), [3.0, 7.0, 11.0]);
    assert_eq!(found[1].as_primitive::<Int64Type>().values(), &[2, 4, i64::MAX - 1]);
    assert_eq!(found[2].as_boolean(), &BooleanArray::from(vec![false, true, false]));
    assert_eq!(found[3].as_primitive::<Float64Type>().values(), &[3.0, 7.0, 11.0]);
}

#[test]
fn results_that_disagree_with_the_declaration_name_both() {
    let column = vectors(&[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    type Case = (&'static str, fn(&Tensor) -> Tensor, &'static str);
    let cases: [Case; 5] = [
        ("FLOAT[384]", |x| x + 1, "FLOAT[384] for 3 rows but the program returned float32 [3, 2]"),
        ("FLOAT", |x| x + 1, "FLOAT for 3 rows but the program returned float32 [3, 2]"),
        ("FLOAT[2]", |x| x.sum_dim_intlist([0i64].as_slice(), true, Kind::Float), "float32 [1, 2]"),
        ("INT[2]", |x| x.to_kind(Kind::Int64), "int64 [3, 2]"),
        ("FLOAT[2]", |x| x.to_kind(Kind::Int), "int32 [3, 2]"),
    ];
    for (declared, program, expected) in cases {
        let folder = traced(&[("x", "FLOAT[2]")], &[("y", declared)], &[example()], |x| {
            vec![program(&x[0])]
        });
        let error = run(&*load_on_cpu(&folder).unwrap(), &[Arc::clone(&column)]).unwrap_err();
        assert!(matches!(error, RuntimeError::Output { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_wrong_number_of_results_is_an_error() {
    let outputs =
        [("a", "FLOAT"), ("b", "BIGINT"), ("c", "BOOLEAN"), ("d", "DOUBLE"), ("e", "FLOAT")];
    for declared in [1, 5] {
        let replica = load_on_cpu(&made("several.pt", &SEVERAL, &outputs[..declared])).unwrap();
        let error = run(&*replica, &several_columns()).unwrap_err().to_string();
        let expected = format!("it returned 4 tensors, but [[output]] declares {declared}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_result_that_is_no_tensor_is_an_error() {
    let replica = load_on_cpu(&made("nothing.pt", &[("x", "FLOAT")], &[("y", "FLOAT")])).unwrap();
    let column: ArrayRef = Arc::new(Float32Array::from(vec![1.0]));
    let error = run(&*replica, &[column]).unwrap_err().to_string();
    assert!(error.contains("the program returned String instead of a tensor"), "{error}");
}

#[test]
fn a_failing_program_is_quoted_in_one_line() {
    let examples = [example()];
    let weights = Tensor::from_slice2(&[[1.0f32], [2.0]]);
    let folder = traced(&[("x", "FLOAT[3]")], &[("y", "FLOAT[1]")], &examples, |x| {
        vec![x[0].matmul(&weights)]
    });
    let error = run(&*load_on_cpu(&folder).unwrap(), &[vectors(&[[1.0, 2.0, 3.0]])]).unwrap_err();
    let message = error.to_string();
    let expected = "model 'm' fails whatever its rows hold: mat1 and mat2 shapes cannot be multiplied \
         (1x3 and 2x1); ";
    assert!(message.starts_with(expected), "{message}");
    assert!(!error.is_retryable());
}

/// Its integers choose among two numbers.
fn table() -> Folder {
    made("table.pt", &[("n", "BIGINT"), ("x", "FLOAT[2]")], &[("y", "FLOAT[2]")])
}

#[test]
fn what_concerns_no_row_is_no_rows_fault() {
    // Half precision, and an argument that is missing: the program says so to any row.
    let folder = tempfile::tempdir().unwrap();
    let bert = prepared("fixtures/bert/package");
    for file in ["model.pt", "tokenizer.json"] {
        fs::copy(bert.join(file), folder.path().join(file)).unwrap();
    }
    let manifest = fs::read_to_string(bert.join("model.toml")).unwrap();
    let lacking = manifest.replace(r#"["input_ids", "attention_mask"]"#, r#"["input_ids"]"#);
    assert_ne!(lacking, manifest);
    fs::write(folder.path().join("model.toml"), lacking).unwrap();
    let (model, package) = open(folder.path());
    let transform = transform::load(&model, &package).unwrap();
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a cat sat", "a dog"]));
    let columns = transform.apply(&[texts]).unwrap().columns;
    let model = ModelDeclaration { precision: Precision::Fp16, ..model };
    let replica = super::super::load(&model, &package, Device::Cpu).unwrap();
    let _thread = super::super::enter_thread(&model, Device::Cpu).unwrap();
    // Together and one at a time: what it says depends on the kernels, and these on the size.
    for (start, rows) in [(0, 2), (0, 1), (1, 1)] {
        let columns: Vec<ArrayRef> = columns.iter().map(|c| c.slice(start, rows)).collect();
        let error = run(&*replica, &columns).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Model, "{error}");
        assert!(error.to_string().contains("try precision = 'fp32'"), "{error}");
    }

    // A row that the program refuses is that row's fault, also if it comes first.
    let replica = load_on_cpu(&table()).unwrap();
    let row =
        |n: i64| -> [ArrayRef; 2] { [Arc::new(Int64Array::from(vec![n])), vectors(&[[1.0, 2.0]])] };
    let error = run(&*replica, &row(7)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Data, "{error}");
    run(&*replica, &row(1)).unwrap();
}

#[test]
fn running_out_of_memory_is_told_apart() {
    // Rows times rows in between.
    let examples = [example().select(1, 0)];
    let folder = traced(&[("x", "FLOAT")], &[("y", "FLOAT")], &examples, |x| {
        let products = x[0].reshape([-1, 1]).matmul(&x[0].reshape([1, -1]));
        vec![products.sum_dim_intlist([1i64].as_slice(), false, Kind::Float)]
    });
    let replica = load_on_cpu(&folder).unwrap();
    let column: ArrayRef = Arc::new(Float32Array::from(vec![1.0; 10_000_000]));
    let error = run(&*replica, &[column]).unwrap_err();
    assert!(matches!(error, RuntimeError::OutOfMemory { rows: 10_000_000, .. }), "{error}");
    assert!(error.is_retryable());
    let column: ArrayRef = Arc::new(Float32Array::from(vec![1.0, 2.0]));
    assert_eq!(floats(&run(&*replica, &[column]).unwrap()[0]), [3.0, 6.0]);
}

#[test]
fn damaged_programs_are_load_errors() {
    let folder =
        traced(&[("x", "FLOAT[2]")], &[("y", "FLOAT[2]")], &[example()], |x| vec![&x[0] + 1]);
    let path = folder.path().join("model.pt");
    let whole = fs::read(&path).unwrap();
    for bytes in [&whole[..whole.len() / 2], b"not a program", b""] {
        fs::write(&path, bytes).unwrap();
        folder.describe(&tensors(&[("x", "FLOAT[2]")], &[("y", "FLOAT[2]")], TORCH), &["model.pt"]);
        let error = load_on_cpu(&folder).unwrap_err();
        assert!(matches!(error, RuntimeError::Load { .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            message.starts_with("model 'm': model.pt cannot be loaded: the file is damaged"),
            "{message}"
        );
        assert!(message.len() < 400 && !message.contains('\n'), "{message}");
    }
}

#[test]
fn lower_precision_converts_floats_and_nothing_else() {
    // Its integers index its floats: converted, they could not.
    let folder = table();
    let (model, package) = open(folder.path());
    for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
        let model = ModelDeclaration { precision, ..model.clone() };
        let replica = super::super::load(&model, &package, Device::Cpu).unwrap();
        let columns = [
            Arc::new(Int64Array::from(vec![1, 0])) as ArrayRef,
            // The last sum has more digits than either half format.
            vectors(&[[1.0, 0.5], [0.25, 2.001_953_1]]),
        ];
        let found = floats(&run(&*replica, &columns).unwrap()[0]);
        let last = if precision == Precision::Fp32 { 6.001_953 } else { 6.0 };
        assert_close(&found, &[2.0, 2.5, 3.25, last], 1e-3);
    }
}

#[test]
fn each_thread_has_its_own_number_of_threads() {
    let (model, _) = open(&prepared("fixtures/bert/package"));
    let threads_of = |cpus: &str| {
        let mut resources = model.resources.clone();
        resources.cpus = cpus.parse().unwrap();
        let guard = enter_thread(&resources, Device::Cpu).unwrap();
        // Another thread with another number in between.
        let inner = std::thread::spawn(|| {
            let _guard = shim::InferenceMode::enter();
            shim::set_threads(5).unwrap();
            tch::get_num_threads()
        });
        assert_eq!(inner.join().unwrap(), 5);
        let threads = tch::get_num_threads();
        drop(guard);
        threads
    };
    for (cpus, expected) in [("1", 1), ("0.5", 1), ("3", 3), ("0", 1)] {
        assert_eq!(
            std::thread::scope(|scope| scope.spawn(|| threads_of(cpus)).join().unwrap()),
            expected
        );
    }
}

#[test]
fn other_devices_are_refused_with_the_reason() {
    let (model, package) = open(&prepared("fixtures/bert/package"));
    let (missing, reason) = match &info().unwrap().cuda {
        Ok(devices) => (devices.len() as u16, "CUDA devices, counted from 0"),
        Err(reason) => (0, reason.as_str()),
    };
    for (device, expected) in [
        (Device::Emulated(0), "emulated accelerators run emulated models only"),
        (Device::Cuda(missing), reason),
    ] {
        let error = super::super::load(&model, &package, device).unwrap_err();
        assert!(matches!(error, RuntimeError::Device { .. }), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(super::super::enter_thread(&model, device).is_err());
    }
}

#[test]
fn operations_are_those_that_pytorch_counts() {
    let text = fs::read_to_string(prepared("fixtures/operations.json")).unwrap();
    let counted: BTreeMap<String, Vec<(usize, usize, f64)>> = serde_json::from_str(&text).unwrap();
    assert!(counted.len() >= 5);
    for (name, points) in counted {
        let (model, package) = open(&prepared(&format!("fixtures/{name}/package")));
        let replica = super::super::load(&model, &package, Device::Cpu).unwrap();
        for (rows, length, expected) in points {
            let found = replica.operations(rows, rows * length).unwrap();
            let off = (found - expected).abs() / expected;
            assert!(off < 1e-3, "{name}: {rows} rows of {length}: {found} instead of {expected}");
        }
    }
}
