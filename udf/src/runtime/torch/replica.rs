//! One TorchScript program on one device.

use arrow::array::{Array, ArrayRef};
use tch::{Kind, TchError, Tensor};

use super::super::{Device, Prepared, Replica};
use super::shim::{self, Module};
use super::tensor::{Mismatch, Tokens, borrow_column, to_column};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Precision, RuntimeKind, Signature, TransformKind};

/// A program with its weights, and what it takes to call it.
#[derive(Debug)]
pub(super) struct TorchReplica {
    model: String,
    signature: Signature,
    transform: TransformKind,
    device: Device,
    /// What floating point inputs are converted to.
    kind: Option<Kind>,
    module: Module,
}

/// Inputs of one forward pass. The tensors may be views of the columns, so they are dropped first.
struct Inputs {
    tensors: Vec<Tensor>,
    _columns: Vec<ArrayRef>,
}

impl TorchReplica {
    pub(super) fn load(
        model: &ModelDeclaration,
        package: &Package,
        device: Device,
    ) -> Result<Self, RuntimeError> {
        let file = match &model.runtime {
            RuntimeKind::Torch { program } => program.clone(),
            RuntimeKind::Emulated { .. } => String::new(),
        };
        let module = Module::load(&package.file(&file), device, model.precision)
            .map_err(|message| load_error(model, &file, device, &message))?;
        Ok(Self {
            model: model.name.clone(),
            signature: model.signature.clone(),
            transform: model.transform.clone(),
            device,
            kind: match model.precision {
                Precision::Fp32 => None,
                Precision::Bf16 => Some(Kind::BFloat16),
                Precision::Fp16 => Some(Kind::Half),
            },
            module,
        })
    }

    fn failed(&self, rows: usize, message: &str) -> RuntimeError {
        let model = self.model.clone();
        let problem = readable(message);
        if is_out_of_memory(message) {
            RuntimeError::OutOfMemory { model, rows, problem }
        } else if is_device_failure(message) {
            RuntimeError::Device { device: self.device.to_string(), problem }
        } else {
            RuntimeError::Program { model, rows, problem }
        }
    }

    /// The program's arguments, on its device.
    fn arguments(&self, columns: &[ArrayRef]) -> Result<(Vec<Tensor>, Option<usize>), TchError> {
        match &self.transform {
            TransformKind::Tokenize { pad_id, arguments, .. } => {
                let tokens = columns.first().and_then(Tokens::of).ok_or_else(|| {
                    TchError::Convert("expected one column of token lists".to_owned())
                })?;
                let tensors = arguments.iter().map(|argument| {
                    self.on_device(match argument.as_str() {
                        "input_ids" => tokens.ids(*pad_id)?,
                        "attention_mask" => tokens.mask()?,
                        _ => tokens.zeros()?,
                    })
                });
                Ok((tensors.collect::<Result<_, _>>()?, Some(tokens.padded())))
            }
            TransformKind::Tensor => {
                // SAFETY: `Inputs` keeps the columns for as long as the tensors, `to_column`
                // copies results that share their memory, and packages promise not to write to
                // their arguments (docs/model-packages.md).
                let tensors =
                    columns.iter().map(|column| self.on_device(unsafe { borrow_column(column) }?));
                Ok((tensors.collect::<Result<_, _>>()?, None))
            }
        }
    }

    /// A no-op on a CPU, unless a floating point tensor has to change its format.
    fn on_device(&self, tensor: Tensor) -> Result<Tensor, TchError> {
        let device = match self.device {
            Device::Cuda(ordinal) => tch::Device::Cuda(usize::from(ordinal)),
            Device::Cpu | Device::Emulated(_) => tch::Device::Cpu,
        };
        let found = tensor.f_kind()?;
        let is_float = matches!(found, Kind::Float | Kind::Double);
        let kind = self.kind.filter(|_| is_float).unwrap_or(found);
        tensor.f_to_dtype_layout((kind, device), false, false)
    }
}

impl Replica for TorchReplica {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        let rows = columns.first().map_or(0, |column| column.len());
        let (tensors, padded) =
            self.arguments(columns).map_err(|error| self.failed(rows, &error.to_string()))?;
        let inputs = Inputs { tensors, _columns: columns.to_vec() };
        Ok(Prepared { rows, padded: padded.unwrap_or(rows), inputs: Box::new(inputs) })
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let rows = batch.rows;
        let Ok(inputs) = batch.inputs.downcast::<Inputs>() else {
            return Err(self.failed(rows, "the batch was prepared by another replica"));
        };
        let fields = &self.signature.outputs;
        let outputs = self.module.forward(&inputs.tensors, fields.len()).map_err(|message| {
            // Work that was started before the failure may still read the inputs.
            if let Device::Cuda(ordinal) = self.device {
                shim::synchronize(ordinal).ok();
            }
            self.failed(rows, &message)
        })?;
        let columns = outputs.into_iter().zip(fields).map(|(output, field)| {
            to_column(output, field, rows, &inputs.tensors).map_err(|mismatch| match mismatch {
                Mismatch::Torch(error) => self.failed(rows, &error.to_string()),
                Mismatch::Shape { expected, found } => RuntimeError::Output {
                    model: self.model.clone(),
                    output: field.name().clone(),
                    expected,
                    found,
                },
            })
        });
        columns.collect()
    }
}

fn load_error(model: &ModelDeclaration, file: &str, device: Device, message: &str) -> RuntimeError {
    if is_device_failure(message) && !is_out_of_memory(message) {
        return RuntimeError::Device { device: device.to_string(), problem: readable(message) };
    }
    // libtorch's archive reader: a truncated or overwritten file.
    let is_damaged = ["PytorchStreamReader", "zip archive", "central directory"]
        .iter()
        .any(|sign| message.contains(sign));
    let problem = if is_damaged {
        // The rest is advice on how the file may have come about.
        let text = readable(message);
        let reason = text.split(". ").next().unwrap_or(&text);
        format!("the file is damaged or no TorchScript program ({reason})")
    } else {
        readable(message)
    };
    RuntimeError::Load { model: model.name.clone(), file: file.to_owned(), problem }
}

/// libtorch gives no error codes. CUDA, the CPU's allocator, and C++ itself, in this order.
fn is_out_of_memory(message: &str) -> bool {
    [
        "out of memory",
        "DefaultCPUAllocator: can't allocate memory",
        "not enough memory",
        "bad_alloc",
    ]
    .iter()
    .any(|sign| message.contains(sign))
}

fn is_device_failure(message: &str) -> bool {
    ["CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS_", "NCCL error"]
        .iter()
        .any(|sign| message.contains(sign))
}

/// The sentence that matters: what follows the interpreter's traceback, without C++ frames.
fn readable(message: &str) -> String {
    let message = message.split("\nException raised from").next().unwrap_or(message);
    let start = message.rfind("Error: ").filter(|_| message.contains("TorchScript interpreter"));
    let text = start.map_or(message, |start| &message[start + "Error: ".len()..]);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let joined = lines.collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(400) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}
