//! Programs of token ids: how texts become them, and what the result is.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::described::{Described, Refusal};
use super::graph::{Dim, Graph, Kind, Port};
use super::head::{self, Made};
use super::json::{self, Files};
use super::tokenizer::Tokens;
use crate::model::declaration::{BatchLimits, TransformKind};

/// What the tokenizer gives a program, and the first of it.
const ARGUMENTS: [&str; 3] = [IDS, "attention_mask", "token_type_ids"];
const IDS: &str = "input_ids";
/// As `forebay model export` chooses them.
const BATCH_ROWS: u32 = 64;
const BATCH_TOKENS: u32 = 1024;

/// Whether a program takes token ids.
pub(super) fn is_one(graph: &Graph) -> bool {
    graph.inputs.iter().any(|input| input.name == IDS)
}

pub(super) fn describe(dir: &Path, graph: &Graph) -> Result<Described, Refusal> {
    let files = Files::read(dir)?;
    let mut one_row = false;
    for input in &graph.inputs {
        one_row |= check_input(input)?;
    }
    let made = head::of(dir, graph, &files)?;
    let tokens = Tokens::read(dir, &files, made.is_pair)?;
    let mut arguments: Vec<String> = graph.inputs.iter().map(|input| input.name.clone()).collect();
    arguments.extend(made.more_arguments.iter().map(|name| (*name).to_owned()));
    let weights = made.head.dense().iter().map(|dense| dense.weights.clone());
    let files_of_model = weights.chain([tokens.file.clone()]).collect();
    let texts: &[&str] = if made.is_pair { &["query", "passage"] } else { &["text"] };
    let (prompts, prompt) = prompts(&files, &made)?;
    let batch_tokens = BATCH_TOKENS.max(tokens.max_tokens);
    Ok(Described {
        about: made.about,
        inputs: texts.iter().map(|name| ((*name).to_owned(), "STRING".to_owned())).collect(),
        outputs: made.outputs,
        transform: TransformKind::Tokenize {
            tokenizer: tokens.file.clone(),
            max_tokens: tokens.max_tokens,
            pad_id: tokens.pad_id,
            vocabulary: None,
            template: None,
            truncation: tokens.truncation,
            arguments,
        },
        results: vec![made.result],
        one_row,
        head: Some(made.head),
        prompts,
        prompt,
        batch: BatchLimits {
            max_rows: BATCH_ROWS,
            max_tokens: Some(batch_tokens),
            max_bytes: None,
            window_rows: 8192,
        },
        activation_bytes: activation_bytes(&files.config, batch_tokens, tokens.max_tokens),
        files: files_of_model,
    })
}

/// Whether an input is of one row; refuses what no tokenizer gives.
fn check_input(input: &Port) -> Result<bool, Refusal> {
    let about = format!("input '{}' is {}", input.name, input.kind);
    if !ARGUMENTS.contains(&input.name.as_str()) {
        return Err((
            format!("{about}, which no tokenizer gives; it gives {}", ARGUMENTS.join(", ")),
            "export the model so that it takes no other inputs".to_owned(),
        ));
    }
    let dims = match &input.kind {
        Kind::Tensor(element, Some(dims)) if matches!(element.name(), "int64" | "int32") => dims,
        _ => &vec![],
    };
    match dims.as_slice() {
        [rows, Dim::Any(_)] if !matches!(rows, Dim::Fixed(2..)) => Ok(*rows == Dim::Fixed(1)),
        _ => Err((
            format!("{about}, expected int64 of any number of rows and of tokens"),
            "export the model with dynamic axes: any number of rows, any length".to_owned(),
        )),
    }
}

type Prompts = (BTreeMap<String, String>, Option<String>);

/// What sentence-transformers puts in front of texts.
fn prompts(files: &Files, made: &Made) -> Result<Prompts, Refusal> {
    let about = &files.sentence_transformers;
    let text = |(name, text): (&String, &Value)| Some((name.clone(), text.as_str()?.to_owned()));
    let prompts = about["prompts"].as_object().into_iter().flatten().filter_map(text);
    let prompts: BTreeMap<String, String> = prompts.collect();
    // Every model has names for queries and documents; those of most stand for nothing.
    if prompts.values().all(String::is_empty) {
        return Ok(Default::default());
    }
    if !made.pools_prompts {
        return Err((
            "the model leaves the tokens of its prompts out of its pooling (include_prompt), which \
             Forebay does not"
                .to_owned(),
            "take another model".to_owned(),
        ));
    }
    Ok((prompts, about["default_prompt_name"].as_str().map(str::to_owned)))
}

/// The intermediate results of an encoder's layer, and its attention.
fn activation_bytes(config: &Value, batch_tokens: u32, longest: u32) -> u64 {
    let hidden = json::first_count(config, &json::WIDTHS).map_or(1024, u64::from);
    let heads = json::count(&config["num_attention_heads"]).map_or(16, u64::from);
    let per_token = 16 * hidden + 2 * heads * u64::from(longest);
    per_token.saturating_mul(4 * u64::from(batch_tokens))
}
