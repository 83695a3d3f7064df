//! One ONNX program on one device.

use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use ort::value::{DynValue, Tensor, TensorElementType, ValueType};

use super::super::device_failure::{device_error, is_out_of_memory};
use super::super::outputs::{Outputs, Unlike};
use super::super::replica::{Device, Prepared, Replica};
use super::super::work::Work;
use super::dense::Layer;
use super::input::Run;
use super::output;
use super::program::Program;
use super::session::{Sessions, Unusable, readable};
use super::thread::threads;
use super::{head, library};
use crate::error::RuntimeError;
use crate::model::{Head, ModelDeclaration, Package, RuntimeKind, TransformKind, products};
use crate::transform::TokenColumn;

/// A program with its weights, and what it takes to call it.
#[derive(Debug)]
pub(super) struct OnnxReplica {
    model: String,
    device: Device,
    transform: TransformKind,
    /// The prepared columns of tokens, in order.
    tokens: Vec<TokenColumn>,
    outputs: Outputs,
    one_row: bool,
    head: Option<Head>,
    /// Those of the head.
    layers: Vec<Layer>,
    program: Program,
    sessions: Sessions,
    /// What batches take, where that is known.
    work: Option<Work>,
    /// Whether it gave results ever, so that what it says of others is about them.
    has_worked: AtomicBool,
}

/// The inputs of a batch: of one run, or of one for each row.
struct Inputs {
    runs: Vec<Run>,
}

impl OnnxReplica {
    pub(super) fn load(
        model: &ModelDeclaration,
        package: &Package,
        device: Device,
    ) -> Result<Self, RuntimeError> {
        library::ensure_loaded()?;
        let (file, one_row, head) = match &model.runtime {
            RuntimeKind::Onnx { program, one_row, head, .. } => (program, *one_row, head.clone()),
            RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } | RuntimeKind::Emulated { .. } => {
                (&model.name, false, None)
            }
        };
        let load_error = |problem: String| RuntimeError::Load {
            model: model.name.clone(),
            file: file.clone(),
            problem,
        };
        let path = package.file(file);
        let sessions = Sessions::load(&path, device, threads(&model.resources, device));
        let sessions = sessions.map_err(|error| match error {
            Unusable::Device(problem) | Unusable::Program(problem)
                if is_out_of_memory(&problem) =>
            {
                let (model, device) = (model.name.clone(), device.to_string());
                RuntimeError::NoRoom { model, device, problem }
            }
            Unusable::Device(problem) => device_error(device, &problem, str::to_owned),
            Unusable::Program(problem) => load_error(with_remedy(problem)),
        })?;
        let program = sessions.ports(|inputs, outputs| Program::of(model, (inputs, outputs)));
        let program = program.unwrap_or_else(|| Err("it has no session".to_owned()));
        let program = program.map_err(load_error)?;
        let layers = head.iter().flat_map(Head::dense).map(|dense| {
            Layer::load(&package.file(&dense.weights), dense.function).map_err(|problem| {
                let (model, file) = (model.name.clone(), dense.weights.clone());
                RuntimeError::Load { model, file, problem }
            })
        });
        let counts =
            device == Device::Cpu && matches!(model.transform, TransformKind::Tokenize { .. });
        let products = if counts { products(&path) } else { None };
        Ok(Self {
            work: products.map(|(token, row)| Work::per(2.0 * row, 2.0 * token)),
            layers: layers.collect::<Result<_, _>>()?,
            model: model.name.clone(),
            device,
            transform: model.transform.clone(),
            tokens: TokenColumn::of(model),
            outputs: Outputs::load(model, package)?,
            one_row,
            head,
            program,
            sessions,
            has_worked: AtomicBool::new(false),
        })
    }

    fn failed(&self, rows: usize, message: &str) -> RuntimeError {
        let model = self.model.clone();
        let problem = readable(message);
        if is_out_of_memory(message) {
            RuntimeError::OutOfMemory { model, rows, problem }
        } else if is_device_failure(message) {
            device_error(self.device, message, readable)
        } else {
            RuntimeError::Program { model, rows, problem }
        }
    }

    /// Whether no row can be at fault for what the program says: it never worked, and says the same to
    /// batches of the same size that hold nothing but zeros, or ones.
    fn says_so_to_any(&self, inputs: &[DynValue], problem: &str) -> bool {
        let says_so_to = |value: u8| {
            let filled: Option<Vec<DynValue>> =
                inputs.iter().map(|input| filled_like(input, value)).collect();
            filled.is_some_and(|filled| {
                let result = self.sessions.run(&self.program.names, &filled, &self.program.results);
                result.is_err_and(|message| readable(&message) == problem)
            })
        };
        !self.has_worked.load(Ordering::Relaxed) && says_so_to(0) && says_so_to(1)
    }

    fn columns(&self, run: &Run) -> Result<Vec<ArrayRef>, RuntimeError> {
        let (names, results) = (&self.program.names, &self.program.results);
        let found = self.sessions.run(names, &run.values, results).map_err(|message| match self
            .failed(run.rows, &message)
        {
            RuntimeError::Program { model, problem, .. }
                if self.says_so_to_any(&run.values, &problem) =>
            {
                RuntimeError::Broken { model, problem }
            }
            other => other,
        })?;
        self.has_worked.store(true, Ordering::Relaxed);
        let unlike = |output: &str, Unlike { expected, found }| RuntimeError::Output {
            model: self.model.clone(),
            output: output.to_owned(),
            expected,
            found,
        };
        if let (Some(head), [result]) = (&self.head, found.as_slice()) {
            return head::columns(head, &self.layers, result, run)
                .map_err(|error| unlike(self.outputs.name(0), error));
        }
        let columns = output::columns(&self.outputs, &found, run.rows);
        columns.map_err(|(output, error)| unlike(&output, error))
    }
}

impl Replica for OnnxReplica {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        let rows = columns.first().map_or(0, |column| column.len());
        let run = |columns: &[ArrayRef]| {
            Run::prepare(&self.transform, &self.tokens, &self.program.inputs, columns)
                .map_err(|problem| self.failed(rows, &problem))
        };
        let runs = if self.one_row {
            (0..rows)
                .map(|row| run(&columns.iter().map(|c| c.slice(row, 1)).collect::<Vec<_>>()))
                .collect::<Result<_, _>>()?
        } else {
            vec![run(columns)?]
        };
        let inputs = Inputs { runs };
        let padded = inputs.runs.iter().map(|run| run.padded).sum();
        Ok(Prepared { rows, padded, inputs: Box::new(inputs) })
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let rows = batch.rows;
        let Ok(inputs) = batch.inputs.downcast::<Inputs>() else {
            return Err(self.failed(rows, "the batch was prepared by another replica"));
        };
        let found = inputs.runs.iter().map(|run| self.columns(run));
        let mut found = found.collect::<Result<Vec<_>, _>>()?;
        if found.len() == 1 {
            return Ok(found.remove(0));
        }
        let column = |at: usize| {
            let parts: Vec<&dyn Array> = found.iter().map(|columns| &*columns[at]).collect();
            concat(&parts).map_err(|error| self.failed(rows, &error.to_string()))
        };
        (0..self.outputs.count()).map(column).collect()
    }

    fn operations(&self, rows: usize, padded: usize) -> Option<f64> {
        self.work.map(|work| work.of(rows, padded))
    }
}

/// A tensor of the same shape that holds nothing but one number.
fn filled_like(input: &DynValue, number: u8) -> Option<DynValue> {
    let ValueType::Tensor { ty, shape, .. } = input.dtype() else { return None };
    let count = shape.num_elements();
    let shape = shape.to_vec();
    Some(match ty {
        TensorElementType::Int64 => {
            Tensor::from_array((shape, vec![i64::from(number); count])).ok()?.into_dyn()
        }
        TensorElementType::Int32 => {
            Tensor::from_array((shape, vec![i32::from(number); count])).ok()?.into_dyn()
        }
        TensorElementType::Float32 => {
            Tensor::from_array((shape, vec![f32::from(number); count])).ok()?.into_dyn()
        }
        TensorElementType::Float64 => {
            Tensor::from_array((shape, vec![f64::from(number); count])).ok()?.into_dyn()
        }
        _ => return None,
    })
}

/// Of what ONNX Runtime says of a program that it cannot load.
fn with_remedy(problem: String) -> String {
    let says = |sign: &str| problem.contains(sign);
    if says("opset") || says("Unsupported model IR version") {
        return format!(
            "{problem}; export it with an older opset, or use a newer ONNX Runtime (`forebay doctor` \
             names this one)"
        );
    }
    if says("External data") || says("external data") || says("file_size") {
        return format!("{problem}; fetch all files of the model again");
    }
    if says("Protobuf parsing failed") || says("No graph was found in the protobuf") {
        return format!("the file is damaged or no ONNX model ({problem}); fetch it again");
    }
    problem
}

fn is_device_failure(message: &str) -> bool {
    ["CUDA failure", "CUDNN failure", "CUBLAS failure", "CUDA error"]
        .iter()
        .any(|sign| message.contains(sign))
}
