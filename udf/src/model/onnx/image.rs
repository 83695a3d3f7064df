//! Programs of pixels in a folder that says how images become them, and what the result is.

use std::path::Path;

use bytesize::MIB;
use serde_json::Value;

use super::described::{Described, Refusal};
use super::graph::{Dim, Graph, Kind, Port};
use super::{head, json, processor};
use crate::model::declaration::{BatchLimits, TransformKind};
use crate::model::head::{Head, Pooling};

const PIXELS: &str = "pixel_values";
/// As `forebay model export` chooses them.
const BATCH_ROWS: u32 = 8;
/// Model types whose first token stands for all of an image, as it is.
const BY_FIRST_TOKEN: [&str; 2] = ["dinov2", "dinov2_with_registers"];

/// Whether a program takes pixels that its folder says how to make.
pub(super) fn is_one(dir: &Path, graph: &Graph) -> bool {
    let takes_pixels = matches!(graph.inputs.as_slice(), [input] if input.name == PIXELS);
    takes_pixels && dir.join(processor::FILE).is_file()
}

pub(super) fn describe(dir: &Path, graph: &Graph) -> Result<Described, Refusal> {
    let config = json::read(dir, "config.json")?;
    let transform = processor::read(dir)?;
    let TransformKind::Image { crop, .. } = &transform else {
        return Err(("its images become no pixels".to_owned(), export_instead()));
    };
    let (crop, one_row) = (*crop, check_input(&graph.inputs[0], *crop)?);
    let (about, result, head, outputs) = made(graph, &config)?;
    Ok(Described {
        about,
        inputs: vec![("image".to_owned(), "BINARY".to_owned())],
        outputs,
        transform,
        results: vec![result],
        one_row,
        head: Some(head),
        prompts: Default::default(),
        prompt: None,
        batch: BatchLimits {
            max_rows: BATCH_ROWS,
            max_tokens: None,
            max_bytes: None,
            window_rows: 4 * BATCH_ROWS,
        },
        // Of the early layers, which are the widest.
        activation_bytes: u64::from(BATCH_ROWS) * 4 * 64 * u64::from(crop).pow(2) + 16 * MIB,
        files: vec![],
    })
}

fn export_instead() -> String {
    "make a package of it with `forebay model export --images`".to_owned()
}

/// Whether the input is of one row; refuses one that the processor's pixels do not fit.
fn check_input(input: &Port, crop: u32) -> Result<bool, Refusal> {
    let refuse = |problem: String, remedy: &str| {
        let about = format!("input '{}' is {}, {problem}", input.name, input.kind);
        Err((about, remedy.to_owned()))
    };
    let dims = match &input.kind {
        Kind::Tensor(element, Some(dims)) if matches!(element.name(), "float" | "float16") => dims,
        _ => &vec![],
    };
    let fits = |dim: &Dim, size: u32| matches!(dim, Dim::Any(_)) || *dim == Dim::Fixed(size);
    match dims.as_slice() {
        [Dim::Fixed(rows @ 2..), ..] => refuse(
            format!("so it takes {rows} rows at a time, no more and no fewer"),
            "export the model with a first dimension that any number of rows fits",
        ),
        [rows, channels, height, width] if fits(channels, 3) => {
            if [height, width].into_iter().all(|side| fits(side, crop)) {
                Ok(*rows == Dim::Fixed(1))
            } else {
                refuse(
                    format!("and {} makes {crop} times {crop} pixels", processor::FILE),
                    "correct the sizes there, or export the model for them",
                )
            }
        }
        _ => refuse(
            "expected float of rows, 3 channels, height and width".to_owned(),
            "export the model for images of three channels",
        ),
    }
}

type Made = (String, String, Head, Vec<(String, String)>);

/// What the program gives, in words, under its name, what is made of it, and the columns.
fn made(graph: &Graph, config: &Value) -> Result<Made, Refusal> {
    let output = |name: &str| graph.outputs.iter().find(|output| output.name == name);
    if let Some(logits) = output("logits") {
        let (head, outputs) = head::classes(logits, config)?;
        let labels = match &head {
            Head::Classify { labels, .. } => labels.len(),
            _ => 1,
        };
        let about = format!("Image classification, {labels} labels");
        return Ok((about, logits.name.clone(), head, outputs));
    }
    let pooled = ["image_embeds", "pooler_output"].iter().find_map(|name| output(name));
    let kind = config["model_type"].as_str().unwrap_or_default();
    let tokens = output("last_hidden_state").filter(|_| BY_FIRST_TOKEN.contains(&kind));
    let (result, rank, modes) = match (pooled, tokens) {
        (Some(pooled), _) => (pooled, 2, vec![]),
        (None, Some(tokens)) => (tokens, 3, vec![Pooling::Cls]),
        (None, None) => {
            let found: Vec<_> =
                graph.outputs.iter().map(|o| format!("'{}', {}", o.name, o.kind)).collect();
            return Err((
                format!(
                    "its outputs are {}; expected one of logits (a classifier's), image_embeds and \
                     pooler_output (an encoder's)",
                    found.join("; ")
                ),
                export_instead(),
            ));
        }
    };
    let width = head::width(result, rank)?.or(json::first_count(config, &json::WIDTHS));
    let Some(width) = width else {
        return Err((
            format!("output '{}' is {}, of an unknown length", result.name, result.kind),
            "state hidden_size in config.json".to_owned(),
        ));
    };
    let head = Head::Pool { modes, dense: vec![], normalize: false, dimension: None };
    let outputs = vec![("embedding".to_owned(), format!("FLOAT[{width}]"))];
    Ok((format!("Image embeddings, {width} dimensions"), result.name.clone(), head, outputs))
}
