//! One TorchScript program on one device.

use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::ArrayRef;
use tch::{Kind, TchError, Tensor};

use super::super::length_multiple;
use super::super::outputs::Outputs;
use super::super::replica::{Device, Held, Replica, Usage};
use super::super::work::Work;
use super::choices;
use super::failure::{batch_error, load_error, readable};
use super::linear::LinearKernels;
use super::made_up::{WARM_TOKENS, made_up_row, padded_rows};
use super::output;
use super::programs::Taken;
use super::rounding::TURNS;
use super::shim::{self, Program};
use super::streams::{self, Pinned, PinnedBytes};
use super::tensor::Mismatch;
use super::thread::enter_thread;
use super::usage::Baseline;
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, Precision, TransformKind};
use crate::transform::TokenColumn;

/// A program with its weights, and what it takes to call it.
#[derive(Debug)]
pub(super) struct TorchReplica {
    model: String,
    pub(super) transform: TransformKind,
    /// The prepared columns of tokens, in order.
    pub(super) columns: Vec<TokenColumn>,
    /// By input, the shape of one row.
    pub(super) shapes: Vec<Option<Vec<u32>>>,
    /// The program's arguments, as messages name them; empty for those that they do not.
    arguments: Vec<String>,
    outputs: Outputs,
    pub(super) device: Device,
    /// What floating point inputs are converted to.
    pub(super) kind: Option<Kind>,
    /// Whether a GPU may round factors to TF32.
    rounds: bool,
    program: Program,
    /// What batches take, where that is known.
    pub(super) work: Option<Work>,
    /// The device's memory before the first batch.
    memory: Option<Baseline>,
    /// What the lengths of texts are rounded up to.
    pub(super) length_multiple: usize,
    /// Batches that a thread is warmed up with.
    pub(super) made_up: Vec<Vec<ArrayRef>>,
    /// Whether a batch without padding goes without its mask. On a CPU attention is no faster then, and the
    /// program would be there twice.
    pub(super) omits_masks: bool,
    /// Of all batches on their way to a GPU and back.
    pinned: PinnedBytes,
    /// Whether it gave results ever, so that what it says of others is about them.
    has_worked: AtomicBool,
}

/// What pixels are normalized with, for each channel.
#[derive(Debug)]
pub(super) struct Channels {
    pub(super) mean: Tensor,
    pub(super) std: Tensor,
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
        let is_packed = matches!(model.precision, Precision::Fp32 | Precision::Bf16);
        if device == Device::Cpu && is_packed && !taken.is_native() {
            let failed = |message: String| load_error(model, &taken.program, device, &message);
            let kernels = kernels.map_err(failed)?;
            pack_linear_layers(&mut program, model, kernels)?;
        }
        let mut replica = Self {
            work: None,
            memory: Baseline::of(device),
            length_multiple: length_multiple(model, device) as usize,
            model: model.name.clone(),
            transform: model.transform.clone(),
            columns: TokenColumn::of(model),
            shapes: package.manifest.shapes.clone(),
            arguments: argument_names(model),
            outputs: Outputs::load(model, package)?,
            device,
            kind: match model.precision {
                Precision::Fp32 | Precision::Tf32 | Precision::Int8 => None,
                Precision::Bf16 => Some(Kind::BFloat16),
                Precision::Fp16 => Some(Kind::Half),
            },
            rounds: model.precision == Precision::Tf32,
            program,
            made_up: made_up_row(model, WARM_TOKENS).into_iter().collect(),
            omits_masks: false,
            pinned: PinnedBytes::default(),
            has_worked: AtomicBool::new(false),
        };
        // A thread that runs it on a GPU is warmed up by itself.
        match device {
            Device::Cpu => replica.warm_up(model),
            Device::Cuda(_) | Device::Emulated(_) => replica.omit_masks(model),
        }
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
            let (inputs, _) = self.inputs(&made_up_row(model, tokens)?).ok()?;
            let arguments = self.arguments(&inputs, self.channels(tch::Device::Cpu).ok()?.as_ref());
            let arguments = arguments.ok()?;
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

    /// Lets batches without padding go without a mask, if the program has a method for them.
    pub(super) fn omit_masks(&mut self, model: &ModelDeclaration) {
        self.omits_masks = self.program.can_do_without_mask();
        if self.omits_masks {
            // The others are another method's.
            self.made_up.extend(padded_rows(model));
        }
    }

    /// Runs the program once on made-up rows: on its first call libtorch compiles it and its
    /// libraries choose and set up their kernels, which belongs to loading. A program that refuses
    /// made-up rows is none the worse for it.
    fn warm_up(&self, model: &ModelDeclaration) {
        let Some(columns) = self.made_up.first() else { return };
        let warm = enter_thread(&model.resources, self.device)
            .and_then(|_guard| self.prepare(columns).and_then(|batch| self.forward(batch)));
        if let Err(error) = warm {
            tracing::debug!("model '{}' was not warmed up: {error}", self.model);
        }
    }

    /// Runs the program on inputs that are on its device.
    pub(super) fn run(
        &self,
        inputs: &[Tensor],
        channels: Option<&Channels>,
    ) -> Result<Vec<Tensor>, shim::Failure> {
        let arguments = self.arguments(inputs, channels).map_err(|error| error.to_string())?;
        self.compute(&arguments)
    }

    /// Runs the program on its arguments, in its turn where libtorch's settings matter.
    pub(super) fn compute(&self, arguments: &[Tensor]) -> Result<Vec<Tensor>, shim::Failure> {
        let _turn = match self.device {
            Device::Cuda(_) => Some(TURNS.enter(self.rounds)?),
            Device::Cpu | Device::Emulated(_) => None,
        };
        let results = self.outputs.results();
        match self.omits_masks && arguments.len() < self.arguments.len() {
            true => self.program.forward_without_mask(arguments, results),
            false => self.program.forward(arguments, results),
        }
    }

    /// Bytes of pinned memory that its batches have at this moment.
    pub(super) fn pinned(&self) -> &PinnedBytes {
        &self.pinned
    }

    /// What a batch of this padded size took of the device's memory.
    pub(super) fn taken(&self, padded: usize) -> Usage {
        self.memory.as_ref().map(|memory| memory.usage(self.device, padded)).unwrap_or_default()
    }

    /// libtorch has given back what it kept for batches.
    pub(super) fn kept_nothing(&self) {
        self.memory.iter().for_each(Baseline::forget);
    }

    /// What its batches, and those of others on its device, hold of memory.
    pub(super) fn held(&self) -> Option<Held> {
        let Device::Cuda(ordinal) = self.device else { return None };
        let reserved = streams::reserved_bytes(ordinal).ok()?;
        Some(Held { pinned: self.pinned.load(Ordering::Relaxed), reserved })
    }

    pub(super) fn failed(&self, rows: usize, message: &str) -> RuntimeError {
        batch_error(&self.model, self.device, rows, message)
    }

    /// Whether no row can be at fault for what the program says: it never worked, and says the same to
    /// batches of the same size that hold nothing but zeros, or ones.
    fn says_so_to_any(&self, tensors: &[Tensor], problem: &str) -> bool {
        let says_so_to = |value: i64| {
            let filled = tensors.iter().map(|tensor| tensor.f_full_like(value)).collect();
            let Ok::<Vec<Tensor>, TchError>(filled) = filled else { return false };
            let result = self.compute(&filled);
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

    /// What a failure is, by what the program does with these arguments and with others.
    pub(super) fn explained(
        &self,
        rows: usize,
        message: &str,
        arguments: &[Tensor],
    ) -> RuntimeError {
        match self.failed(rows, message) {
            RuntimeError::Program { model, problem, .. }
                if self.says_so_to_any(arguments, &problem) =>
            {
                RuntimeError::Broken { model, problem }
            }
            RuntimeError::Program { model, rows, problem } if is_beyond_table(&problem) => {
                let problem = format!("{problem}{}", self.largest(arguments));
                RuntimeError::Program { model, rows, problem }
            }
            other => other,
        }
    }

    /// The same, of inputs that have not become arguments.
    pub(super) fn explained_by_inputs(
        &self,
        rows: usize,
        message: &str,
        inputs: &[Tensor],
    ) -> RuntimeError {
        let device = inputs.first().map_or(tch::Device::Cpu, Tensor::device);
        let channels = self.channels(device).ok().flatten();
        let arguments = self.arguments(inputs, channels.as_ref()).unwrap_or_default();
        self.explained(rows, message, &arguments)
    }

    /// Copies in memory that the device copies from by itself.
    pub(super) fn staged(&self, inputs: &[Tensor]) -> Result<Vec<Pinned>, shim::Failure> {
        inputs.iter().map(|input| Pinned::of(input, self.device, &self.pinned)).collect()
    }

    /// The declared columns of what the program gave. What shares memory with one of `inputs` is copied.
    pub(super) fn columns(
        &self,
        rows: usize,
        results: &[Tensor],
        inputs: &[Tensor],
    ) -> Result<Vec<ArrayRef>, RuntimeError> {
        self.has_worked.store(true, Ordering::Relaxed);
        let columns = output::columns(&self.outputs, results, rows, inputs);
        columns.map_err(|(output, mismatch)| match mismatch {
            Mismatch::Torch(error) => self.failed(rows, &error.to_string()),
            Mismatch::Shape { expected, found } => {
                RuntimeError::Output { model: self.model.clone(), output, expected, found }
            }
        })
    }
}

/// Has linear layers and attention computed as fast as this CPU can. A program of which libtorch cannot make it out
/// runs as it is.
fn pack_linear_layers(
    program: &mut Program,
    model: &ModelDeclaration,
    kernels: LinearKernels,
) -> Result<(), RuntimeError> {
    // What is faster depends on the number of threads.
    let _guard = enter_thread(&model.resources, Device::Cpu)?;
    choices::recall();
    let packed = program.pack_linear_layers(kernels);
    choices::keep();
    match packed {
        Ok(packed) => tracing::debug!("model '{}': packed are {packed:?}", model.name),
        Err(message) => {
            let reason = readable(&message);
            tracing::warn!(
                "model '{}' keeps libtorch's kernels, of all layers or of some: {reason}",
                model.name
            );
        }
    }
    Ok(())
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
