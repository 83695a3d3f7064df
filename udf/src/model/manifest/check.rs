//! What a description must be, for all that use it: entries that fit one another.

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, FieldRef, Fields};

use super::{MANIFEST, Manifest};
use crate::error::{nearest_hint, quoted};
use crate::feature::image::Recipe;
use crate::model::compiled::Compiled;
use crate::model::declaration::{BatchLimits, RuntimeKind, TransformKind};
use crate::model::emulated::Curve;
use crate::model::location::is_safe_name;
use crate::model::number::Number;
use crate::model::options::Precision;
use crate::model::signature::{list_item, parts, type_name};
use crate::model::template::Template;

const ARGUMENTS: [&str; 7] = [
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "token_starts",
    "token_ends",
    "token_texts",
    "token_words",
];
/// Those that say where in its text a token is.
const OFFSETS: [&str; 2] = ["token_starts", "token_ends"];

impl Manifest {
    /// What is wrong with it, if anything.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.name.trim().is_empty() {
            return Err("name is empty".to_owned());
        }
        check_columns("input", &self.signature.inputs)?;
        check_columns("output", &self.signature.outputs)?;
        self.check_transform()?;
        self.check_prompts()?;
        self.check_shapes()?;
        self.check_runtime()?;
        self.check_precisions()?;
        self.resources.gpus.check_gpus("resources.gpus").map_err(|e| e.to_string())?;
        let BatchLimits { max_rows, max_tokens, max_bytes, window_rows } = self.batch;
        let limits = [
            ("max_rows", Some(u64::from(max_rows))),
            ("max_tokens", max_tokens.map(u64::from)),
            ("max_bytes", max_bytes),
            ("window_rows", Some(u64::from(window_rows))),
        ];
        if let Some((key, _)) = limits.iter().find(|(_, limit)| *limit == Some(0)) {
            return Err(format!("batch.{key} is 0, expected at least 1"));
        }
        self.check_files()
    }

    fn check_transform(&self) -> Result<(), String> {
        let inputs = &self.signature.inputs;
        match &self.transform {
            TransformKind::Tokenize { max_tokens, arguments, vocabulary, template, .. } => {
                check_tokens(inputs, *max_tokens, arguments, *vocabulary)?;
                match template {
                    Some(template) => Template::parse(template, inputs).map(drop),
                    None => Ok(()),
                }
            }
            TransformKind::Image { resize, crop, mean, std, .. } => {
                if inputs.len() != 1 || inputs[0].data_type() != &DataType::Binary {
                    return Err("transform 'image' takes one [[input]] of type BINARY".to_owned());
                }
                Recipe::try_new(*resize, *crop)
                    .map_err(|problem| format!("transform: {problem}"))?;
                check_channels(mean, std)
            }
            // What is no tensor is passed on to a runtime that needs none.
            TransformKind::Tensor if matches!(self.runtime, RuntimeKind::Emulated { .. }) => Ok(()),
            TransformKind::Tensor => {
                check_tensors(inputs, matches!(self.runtime, RuntimeKind::Onnx { .. }))
            }
        }
    }

    fn check_prompts(&self) -> Result<(), String> {
        let offsets = match &self.transform {
            TransformKind::Tokenize { arguments, .. } => {
                arguments.iter().any(|argument| OFFSETS.contains(&argument.as_str()))
            }
            TransformKind::Tensor | TransformKind::Image { .. } => true,
        };
        if offsets && !self.prompts.is_empty() {
            return Err("[prompts] is for transform 'tokenize', and not with token_starts or \
                        token_ends, which would count them"
                .to_owned());
        }
        if self.prompts.contains_key("") {
            return Err("[prompts] holds one without a name".to_owned());
        }
        match self.prompt.as_ref().filter(|name| !self.prompts.contains_key(*name)) {
            Some(name) => {
                Err(format!("prompt is '{}', which [prompts] does not hold", quoted(name)))
            }
            None => Ok(()),
        }
    }

    fn check_shapes(&self) -> Result<(), String> {
        for (field, shape) in self.signature.inputs.iter().zip(&self.shapes) {
            let Some(shape) = shape else { continue };
            let items = shape.iter().try_fold(1_u32, |items, size| items.checked_mul(*size));
            let fits = match field.data_type() {
                DataType::FixedSizeList(_, length) => items == u32::try_from(*length).ok(),
                _ => false,
            };
            if !fits || self.transform != TransformKind::Tensor {
                return Err(format!(
                    "input '{}' of type {} cannot have the shape {}, which is for a vector of as many \
                     numbers with transform 'tensor'",
                    quoted(field.name()),
                    quoted(&type_name(field.data_type())),
                    quoted(&format!("{shape:?}"))
                ));
            }
        }
        Ok(())
    }

    fn check_runtime(&self) -> Result<(), String> {
        if let RuntimeKind::Onnx { results, head, .. } = &self.runtime {
            let found = results.len();
            let expected = if head.is_some() { 1 } else { self.signature.results() };
            if !results.is_empty() && found != expected {
                return Err(format!(
                    "runtime.results names {found} of the program's results, expected {expected}"
                ));
            }
            head.iter().try_for_each(|head| head.check(&self.signature.outputs))?;
        }
        if let RuntimeKind::Aoti { program, compiled } = &self.runtime {
            check_compiled(program, compiled)?;
        }
        if let RuntimeKind::Emulated { curve: Some(curve), .. } = &self.runtime {
            check_curve(curve)?;
        }
        let outputs = self.signature.outputs.iter().zip(&self.labels);
        outputs
            .into_iter()
            .try_for_each(|(field, labels)| self.check_output(field, labels.is_some()))
    }

    /// Whether the runtime can give an output.
    fn check_output(&self, field: &FieldRef, has_labels: bool) -> Result<(), String> {
        let is_torch = self.runtime.is_torch();
        let is_emulated = matches!(self.runtime, RuntimeKind::Emulated { .. });
        let has_head = matches!(self.runtime, RuntimeKind::Onnx { head: Some(_), .. });
        let sql_type = type_name(field.data_type());
        let (name, sql_type) = (quoted(field.name()), quoted(&sql_type));
        let is_possible = |part: &FieldRef| {
            let found = part.data_type();
            found == &DataType::Utf8 || is_tensor_type(found) && !is_of_bytes(found)
        };
        let is_list = list_item(field).is_some();
        if is_list && is_emulated || !parts(field).iter().all(is_possible) {
            return Err(format!(
                "runtime '{}' cannot give output '{name}' of type {sql_type}",
                self.runtime.name(),
            ));
        }
        let has_text = parts(field).iter().any(|part| part.data_type() == &DataType::Utf8);
        if is_torch && has_text && !has_labels {
            return Err(format!(
                "runtime '{}' cannot give output '{name}' of type {sql_type} without labels: a \
                 JSON file of the texts that the program's numbers stand for",
                self.runtime.name()
            ));
        }
        if has_labels && (is_emulated || has_head || !has_text) {
            return Err(format!(
                "output '{name}' of type {sql_type} has labels, which are for STRING and lists of it, \
                 of the runtimes torch and onnx, and not beside a [runtime.head]"
            ));
        }
        Ok(())
    }

    fn check_precisions(&self) -> Result<(), String> {
        for (name, off) in self.precisions.iter().flatten() {
            let is_half = matches!(name.parse(), Ok(Precision::Bf16 | Precision::Fp16));
            if !(is_half && off.0 >= 0.0 && off.0.is_finite()) {
                return Err(format!(
                    "[precisions] holds '{}' = {}, expected bf16 or fp16 and how far results are off",
                    quoted(name),
                    off.0
                ));
            }
        }
        for (name, quality) in &self.quality {
            let shown = quoted(name);
            name.parse::<Precision>()
                .map_err(|error| format!("[quality] is of '{shown}': {error}"))
                .and_then(|_| quality.check().map_err(|why| format!("[quality.{shown}] {why}")))?;
        }
        Ok(())
    }

    fn check_files(&self) -> Result<(), String> {
        for (name, hash) in &self.files {
            if !is_safe_name(name) {
                return Err(format!(
                    "[files] holds '{}', expected the name of a file within the package",
                    quoted(name)
                ));
            }
            if name == MANIFEST {
                return Err(format!("[files] holds {MANIFEST}, which cannot hold its own hash"));
            }
            if hash.len() != 64 || !hash.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(format!("[files] '{}' is not a SHA-256 in hexadecimal", quoted(name)));
            }
        }
        let tokenizer = match &self.transform {
            TransformKind::Tokenize { tokenizer, .. } => Some(("transform.tokenizer", tokenizer)),
            TransformKind::Tensor | TransformKind::Image { .. } => None,
        };
        let program = match &self.runtime {
            RuntimeKind::Torch { program }
            | RuntimeKind::Aoti { program, .. }
            | RuntimeKind::Onnx { program, .. } => Some(("runtime.program", program)),
            RuntimeKind::Emulated { .. } => None,
        };
        let compiled = match &self.runtime {
            RuntimeKind::Aoti { compiled, .. } => compiled.as_slice(),
            _ => &[],
        };
        let compiled = compiled.iter().map(|one| ("runtime.compiled.program", &one.program));
        let labels = self.labels.iter().flatten().map(|name| ("labels", name));
        let head = match &self.runtime {
            RuntimeKind::Onnx { head: Some(head), .. } => head.dense(),
            _ => &[],
        };
        let dense = head.iter().map(|dense| ("runtime.head.dense.weights", &dense.weights));
        let missing = [tokenizer, program]
            .into_iter()
            .flatten()
            .chain(compiled)
            .chain(labels)
            .chain(dense)
            .find(|(_, name)| !self.files.contains_key(*name));
        match missing {
            Some((key, name)) => {
                Err(format!("{key} is '{}', which [files] does not list", quoted(name)))
            }
            None => Ok(()),
        }
    }
}

/// What devices that no native code fits run instead is not optional.
fn check_compiled(program: &str, compiled: &[Compiled]) -> Result<(), String> {
    if program.is_empty() {
        return Err("runtime 'aoti' has no program: name the TorchScript file that runs where no \
                    [[runtime.compiled]] fits (`forebay model export --compile` writes both)"
            .to_owned());
    }
    if compiled.is_empty() {
        return Err(
            "runtime 'aoti' has no [[runtime.compiled]]; a package of TorchScript alone is of the \
                    runtime 'torch'"
                .to_owned(),
        );
    }
    let mut seen = BTreeSet::new();
    for one in compiled {
        let Compiled { program, architecture, precision, torch } = one;
        if *precision == Precision::Int8 {
            let program = quoted(program);
            return Err(format!("'{program}' is in int8, expected fp32, bf16 or fp16"));
        }
        if !seen.insert((architecture, precision.to_string(), torch)) {
            return Err(format!(
                "two [[runtime.compiled]] are for {architecture} in {precision} by torch {}",
                quoted(torch)
            ));
        }
    }
    Ok(())
}

fn check_tokens(
    inputs: &Fields,
    max_tokens: u32,
    arguments: &[String],
    vocabulary: Option<u32>,
) -> Result<(), String> {
    if inputs.len() > 2 || inputs.iter().any(|i| i.data_type() != &DataType::Utf8) {
        return Err("transform 'tokenize' takes one [[input]] of type STRING, or two".to_owned());
    }
    if max_tokens == 0 {
        return Err("transform.max_tokens is 0, expected at least 1".to_owned());
    }
    if arguments.is_empty() {
        return Err("transform.arguments is empty".to_owned());
    }
    let unknown = |name: &&String| !ARGUMENTS.contains(&name.as_str());
    if let Some(name) = arguments.iter().find(unknown) {
        return Err(format!(
            "transform.arguments holds '{}', expected {}{}",
            quoted(name),
            ARGUMENTS.join(", "),
            nearest_hint(name, ARGUMENTS)
        ));
    }
    if vocabulary == Some(0) {
        return Err("transform.vocabulary is 0, expected at least 1".to_owned());
    }
    Ok(())
}

/// Memory is said in the order of batches.
fn check_curve(curve: &Curve) -> Result<(), String> {
    match curve.free_bytes.windows(2).find(|pair| pair[0][0] >= pair[1][0]) {
        Some(pair) => Err(format!(
            "runtime.curve.free_bytes has {} batches after {}, expected more in each pair than in the one before it",
            pair[1][0], pair[0][0]
        )),
        None => Ok(()),
    }
}

fn check_channels(mean: &[Number; 3], std: &[Number; 3]) -> Result<(), String> {
    let is_usable = |number: &Number| number.0.is_finite();
    if mean.iter().all(is_usable) && std.iter().all(|s| is_usable(s) && s.0 > 0.0) {
        return Ok(());
    }
    Err(format!(
        "transform.mean is {:?} and transform.std is {:?}, expected numbers, and of std those above 0",
        mean.map(|number| number.0),
        std.map(|number| number.0)
    ))
}

/// Programs of ONNX may take texts, and other runtimes bytes.
fn check_tensors(inputs: &Fields, is_onnx: bool) -> Result<(), String> {
    let is_possible = |data_type: &DataType| {
        let is_tensor = is_tensor_type(data_type) && !(is_onnx && is_of_bytes(data_type));
        is_tensor || is_onnx && data_type == &DataType::Utf8
    };
    let kind = if is_onnx { "numbers (but not UINT8), texts" } else { "numbers" };
    match inputs.iter().find(|field| !is_possible(field.data_type())) {
        Some(field) => Err(format!(
            "transform 'tensor' takes {kind} and vectors, but input '{}' is {}",
            quoted(field.name()),
            quoted(&type_name(field.data_type()))
        )),
        None => Ok(()),
    }
}

fn check_columns(kind: &str, fields: &Fields) -> Result<(), String> {
    if fields.is_empty() {
        return Err(format!("there is no [[{kind}]]"));
    }
    let mut names = BTreeSet::new();
    for field in fields {
        if field.name().trim().is_empty() {
            return Err(format!("an [[{kind}]] has an empty name"));
        }
        if !names.insert(field.name()) {
            return Err(format!("[[{kind}]] '{}' is there twice", quoted(field.name())));
        }
    }
    Ok(())
}

/// What only inputs may be.
fn is_of_bytes(data_type: &DataType) -> bool {
    match data_type {
        DataType::FixedSizeList(item, _) => item.data_type() == &DataType::UInt8,
        scalar => scalar == &DataType::UInt8,
    }
}

fn is_tensor_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean
        | DataType::UInt8
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64 => true,
        DataType::FixedSizeList(item, _) => item.data_type().is_numeric(),
        _ => false,
    }
}
