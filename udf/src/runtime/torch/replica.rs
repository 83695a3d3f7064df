//! One TorchScript program on one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::{Array, ArrayRef, FixedSizeListArray, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef};
use tch::{Kind, TchError, Tensor};

use super::super::outputs::Outputs;
use super::super::replica::{Device, Prepared, Replica};
use super::super::work::Work;
use super::choices;
use super::failure::{is_device_failure, is_out_of_memory, load_error, readable};
use super::linear::LinearKernels;
use super::output;
use super::programs::Taken;
use super::shim::{self, Program};
use super::tensor::{Mismatch, Tokens, borrow_column};
use super::thread::enter_thread;
use crate::error::RuntimeError;
use crate::model::{Layout, ModelDeclaration, Number, Package, Precision, TransformKind};
use crate::transform::{TokenColumn, output_fields};

/// A program with its weights, and what it takes to call it.
#[derive(Debug)]
pub(super) struct TorchReplica {
    model: String,
    transform: TransformKind,
    /// The prepared columns of tokens, in order.
    columns: Vec<TokenColumn>,
    /// By input, the shape of one row.
    shapes: Vec<Option<Vec<u32>>>,
    /// The program's arguments, as messages name them; empty for those that they do not.
    arguments: Vec<String>,
    outputs: Outputs,
    device: Device,
    /// What floating point inputs are converted to.
    kind: Option<Kind>,
    program: Program,
    /// What batches take, where that is known.
    work: Option<Work>,
    /// Whether it gave results ever, so that what it says of others is about them.
    has_worked: AtomicBool,
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
        kernels: Result<LinearKernels, String>,
    ) -> Result<Self, RuntimeError> {
        let taken = Taken::by(model, device)?;
        let mut program = taken.load(model, package, device)?;
        if device == Device::Cpu && model.precision == Precision::Fp32 && !taken.is_native() {
            let failed = |message: String| load_error(model, &taken.program, device, &message);
            let kernels = kernels.map_err(failed)?;
            pack_linear_layers(&mut program, model, kernels)?;
        }
        let mut replica = Self {
            work: None,
            model: model.name.clone(),
            transform: model.transform.clone(),
            columns: TokenColumn::of(model),
            shapes: package.manifest.shapes.clone(),
            arguments: argument_names(model),
            outputs: Outputs::load(model, package)?,
            device,
            kind: match model.precision {
                Precision::Fp32 | Precision::Int8 => None,
                Precision::Bf16 => Some(Kind::BFloat16),
                Precision::Fp16 => Some(Kind::Half),
            },
            program,
            has_worked: AtomicBool::new(false),
        };
        replica.warm_up(model);
        // Native code calls what computes products without telling libtorch.
        if device == Device::Cpu && !taken.is_native() {
            replica.work = replica.counted(model);
        }
        Ok(replica)
    }

    /// What batches take: counted on made-up rows of three lengths, or one if they have none.
    fn counted(&self, model: &ModelDeclaration) -> Option<Work> {
        let _guard = enter_thread(&model.resources, self.device).ok()?;
        let of_row = |tokens: i32| {
            let (arguments, _) = self.arguments(&made_up_row(model, tokens)?).ok()?;
            self.program.operations(&arguments).ok()
        };
        match &model.transform {
            TransformKind::Tokenize { max_tokens, .. } => {
                let longest = i32::try_from(*max_tokens).unwrap_or(WARM_TOKENS).min(WARM_TOKENS);
                let lengths = [longest / 4, longest / 2, longest];
                let is_clear = lengths[0] > 0;
                let points = lengths.map(|tokens| Some((f64::from(tokens), of_row(tokens)?)));
                let [Some(first), Some(second), Some(third)] = points else { return None };
                is_clear.then(|| Work::through([first, second, third]))
            }
            TransformKind::Tensor | TransformKind::Image { .. } => {
                of_row(WARM_TOKENS).map(|row| Work::per(row, 0.0))
            }
        }
    }

    /// Runs the program once on made-up rows: on its first call libtorch compiles it and its
    /// libraries choose and set up their kernels, which belongs to loading. A program that refuses
    /// made-up rows is none the worse for it.
    fn warm_up(&self, model: &ModelDeclaration) {
        let Some(columns) = made_up_row(model, WARM_TOKENS) else { return };
        let warm = enter_thread(&model.resources, self.device)
            .and_then(|_guard| self.prepare(&columns).and_then(|batch| self.forward(batch)));
        if let Err(error) = warm {
            tracing::debug!("model '{}' was not warmed up: {error}", self.model);
        }
    }

    /// Runs the program, and once more if memory that nothing uses was missing: libtorch keeps what was freed for
    /// tensors of its own, and cuBLAS and cuDNN allocate by themselves.
    fn run(&self, tensors: &[Tensor]) -> Result<Vec<Tensor>, shim::Failure> {
        let run = || self.program.forward(tensors, self.outputs.results());
        match run() {
            Err(message) if self.device != Device::Cpu && is_out_of_memory(&message) => {
                shim::synchronize(self.device)?;
                shim::empty_cache()?;
                run()
            }
            result => result,
        }
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

    /// Whether no row can be at fault for what the program says: it never worked, and says the same to
    /// batches of the same size that hold nothing but zeros, or ones.
    fn says_so_to_any(&self, tensors: &[Tensor], problem: &str) -> bool {
        let says_so_to = |value: i64| {
            let filled = tensors.iter().map(|tensor| tensor.f_full_like(value)).collect();
            let Ok::<Vec<Tensor>, TchError>(filled) = filled else { return false };
            let result = self.program.forward(&filled, self.outputs.results());
            result.is_err_and(|message| readable(&message) == problem)
        };
        !self.has_worked.load(Ordering::Relaxed) && says_so_to(0) && says_so_to(1)
    }

    /// The largest whole number of each argument, for a message about one that is beyond a table.
    fn largest(&self, tensors: &[Tensor]) -> String {
        let whole = tensors.iter().zip(&self.arguments).filter_map(|(tensor, name)| {
            let is_whole = matches!(tensor.f_kind().ok()?, Kind::Int | Kind::Int64);
            let is_named = is_whole && !name.is_empty();
            let largest = i64::try_from(is_named.then(|| tensor.f_max().ok())??).ok()?;
            Some(format!("the largest of '{name}' is {largest}"))
        });
        let whole: Vec<String> = whole.collect();
        format!(
            ": a table of the program has no row for a number that it got ({}); take the tokenizer that \
             the model was trained with, or leave such rows out",
            whole.join(", ")
        )
    }

    /// The program's arguments, on its device, and the padded size of tokens.
    fn arguments(&self, columns: &[ArrayRef]) -> Result<(Vec<Tensor>, Option<usize>), TchError> {
        match &self.transform {
            TransformKind::Tokenize { pad_id, arguments, .. } => {
                let no_tokens = || TchError::Convert("expected columns of token lists".to_owned());
                let tokens = columns.iter().map(Tokens::of).collect::<Option<Vec<_>>>();
                let tokens = tokens.filter(|tokens| tokens.len() == self.columns.len());
                let tokens = tokens.ok_or_else(no_tokens)?;
                let ids = tokens.first().ok_or_else(no_tokens)?;
                let tensors = arguments.iter().map(|argument| {
                    let is_it = |column: &TokenColumn| column.argument() == argument;
                    self.on_device(match self.columns.iter().position(is_it) {
                        Some(at) => tokens[at].padded_with(self.columns[at].padding(*pad_id))?,
                        None if argument == "attention_mask" => ids.mask()?,
                        // Token types of single texts.
                        None => ids.zeros()?,
                    })
                });
                Ok((tensors.collect::<Result<_, _>>()?, Some(ids.padded())))
            }
            TransformKind::Tensor => {
                let tensors = columns.iter().zip(&self.shapes).map(|(column, shape)| {
                    // SAFETY: `Inputs` keeps the columns for as long as the tensors, `to_column`
                    // copies results that share their memory, and packages promise not to write
                    // to their arguments (docs/model-packages.md).
                    let mut tensor = unsafe { borrow_column(column) }?;
                    if let Some(shape) = shape {
                        let sizes = shape.iter().map(|size| i64::from(*size));
                        let sizes: Vec<i64> =
                            [column.len() as i64].into_iter().chain(sizes).collect();
                        tensor = tensor.f_view(sizes.as_slice())?;
                    }
                    self.on_device(tensor)
                });
                Ok((tensors.collect::<Result<_, _>>()?, None))
            }
            TransformKind::Image { crop, layout, mean, std, .. } => {
                Ok((vec![self.pixels(columns, *crop, *layout, [mean, std])?], None))
            }
        }
    }

    /// Bytes go to the device; what is made of them, four times as many, is made there.
    fn pixels(
        &self,
        columns: &[ArrayRef],
        crop: u32,
        layout: Layout,
        [mean, std]: [&[Number; 3]; 2],
    ) -> Result<Tensor, TchError> {
        let [column] = columns else {
            return Err(TchError::Convert("expected one column of pixels".to_owned()));
        };
        let side = i64::from(crop);
        // SAFETY: as in `arguments`; conversion to floating point copies.
        let bytes = unsafe { borrow_column(column) }?;
        let bytes = self.on_device(bytes.f_view([column.len() as i64, side, side, 3])?)?;
        let of_channels = |numbers: &[Number; 3]| {
            Tensor::f_from_slice(&numbers.map(|number| number.0 as f32))?.f_to(bytes.device())
        };
        let mut pixels = bytes.f_to_kind(Kind::Float)?;
        pixels = pixels.f_div_scalar_(255.0)?;
        pixels = pixels.f_sub_(&of_channels(mean)?)?;
        pixels = pixels.f_div_(&of_channels(std)?)?;
        if let Some(kind) = self.kind {
            pixels = pixels.f_to_kind(kind)?;
        }
        match layout {
            // The channels stay side by side in memory, which is what convolutions like best.
            Layout::Chw => pixels.f_permute([0, 3, 1, 2]),
            Layout::Hwc => Ok(pixels),
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
        // The forward pass would otherwise read pixels that are still being normalized.
        shim::synchronize(self.device).map_err(|message| self.failed(rows, &message))?;
        let inputs = Inputs { tensors, _columns: columns.to_vec() };
        Ok(Prepared { rows, padded: padded.unwrap_or(rows), inputs: Box::new(inputs) })
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let rows = batch.rows;
        let Ok(inputs) = batch.inputs.downcast::<Inputs>() else {
            return Err(self.failed(rows, "the batch was prepared by another replica"));
        };
        let results = self.run(&inputs.tensors).map_err(|message| {
            // Work that was started before the failure may still read the inputs.
            shim::synchronize(self.device).ok();
            match self.failed(rows, &message) {
                RuntimeError::Program { model, problem, .. }
                    if self.says_so_to_any(&inputs.tensors, &problem) =>
                {
                    RuntimeError::Broken { model, problem }
                }
                RuntimeError::Program { model, rows, problem } if is_beyond_table(&problem) => {
                    let problem = format!("{problem}{}", self.largest(&inputs.tensors));
                    RuntimeError::Program { model, rows, problem }
                }
                other => other,
            }
        })?;
        self.has_worked.store(true, Ordering::Relaxed);
        let columns = output::columns(&self.outputs, &results, rows, &inputs.tensors);
        columns.map_err(|(output, mismatch)| match mismatch {
            Mismatch::Torch(error) => self.failed(rows, &error.to_string()),
            Mismatch::Shape { expected, found } => {
                RuntimeError::Output { model: self.model.clone(), output, expected, found }
            }
        })
    }

    fn operations(&self, rows: usize, padded: usize) -> Option<f64> {
        self.work.map(|work| work.of(rows, padded))
    }
}

/// Has linear layers computed as fast as this CPU can. A program of which libtorch cannot make it out
/// runs as it is.
fn pack_linear_layers(
    program: &mut Program,
    model: &ModelDeclaration,
    kernels: LinearKernels,
) -> Result<(), RuntimeError> {
    let all = match kernels {
        LinearKernels::Mkl => return Ok(()),
        LinearKernels::Measured => false,
        LinearKernels::OneDnn => true,
    };
    // What is faster depends on the number of threads.
    let _guard = enter_thread(&model.resources, Device::Cpu)?;
    choices::recall();
    let packed = program.pack_linear_layers(all);
    choices::keep();
    match packed {
        Ok(packed) => tracing::debug!("model '{}': oneDNN computes {packed:?}", model.name),
        Err(message) => {
            let reason = readable(&message);
            tracing::warn!("model '{}' runs with MKL's kernels only: {reason}", model.name);
        }
    }
    Ok(())
}

/// Tokens of a made-up row.
const WARM_TOKENS: i32 = 8;

/// One row of zeros in each prepared column, lists of so many; `None` for columns that zeros cannot be made
/// of.
fn made_up_row(model: &ModelDeclaration, tokens: i32) -> Option<Vec<ArrayRef>> {
    let zeros = |count: i32, data_type: &DataType| {
        cast(&Int32Array::from_iter_values((0..count).map(|_| 0)), data_type).ok()
    };
    let column = |field: FieldRef| -> Option<ArrayRef> {
        Some(match field.data_type() {
            DataType::List(item) => {
                let items = zeros(tokens, item.data_type())?;
                let offsets = OffsetBuffer::from_lengths([items.len()]);
                Arc::new(ListArray::new(Arc::clone(item), offsets, items, None))
            }
            DataType::FixedSizeList(item, length) => {
                let items = zeros(*length, item.data_type())?;
                Arc::new(FixedSizeListArray::new(Arc::clone(item), *length, items, None))
            }
            scalar if scalar.is_numeric() => zeros(1, scalar)?,
            _ => return None,
        })
    };
    output_fields(model).into_iter().map(column).collect()
}

/// What PyTorch says of a number that an embedding has no row for, on a CPU.
fn is_beyond_table(problem: &str) -> bool {
    problem.contains("index out of range in self")
}

/// Those of tokens are named by the package, others are the inputs.
fn argument_names(model: &ModelDeclaration) -> Vec<String> {
    match &model.transform {
        // The others are counted from them.
        TransformKind::Tokenize { arguments, .. } => {
            let is_ids = |name: &String| name == TokenColumn::Id.argument();
            arguments
                .iter()
                .map(|name| if is_ids(name) { name.clone() } else { String::new() })
                .collect()
        }
        TransformKind::Tensor | TransformKind::Image { .. } => {
            model.signature.inputs.iter().map(|input| input.name().clone()).collect()
        }
    }
}
