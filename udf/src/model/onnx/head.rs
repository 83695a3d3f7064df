//! What a program of texts gives, and what its model makes of it: as the folder's files say.

use std::path::Path;

use serde_json::Value;

use super::graph::{Dim, Graph, Kind, Port};
use super::text::Files;
use super::{Refusal, json};
use crate::model::head::{Activation, Head, Pooling};

/// What a model makes of texts.
pub(super) struct Made {
    pub(super) about: String,
    pub(super) is_pair: bool,
    /// The program's result that counts.
    pub(super) result: String,
    pub(super) outputs: Vec<(String, String)>,
    pub(super) head: Head,
    /// Whether the tokens of a prompt count in the pooling.
    pub(super) pools_prompts: bool,
}

const VECTORS: [&str; 2] = ["token_embeddings", "last_hidden_state"];
const VECTOR: &str = "sentence_embedding";

pub(super) fn of(dir: &Path, graph: &Graph, files: &Files) -> Result<Made, Refusal> {
    let output = |name: &str| graph.outputs.iter().find(|output| output.name == name);
    let is_reranker = files.sentence_transformers["model_type"] == "CrossEncoder";
    if let Some(logits) = output("logits").filter(|_| files.modules.is_null() || is_reranker) {
        return scores(logits, files, is_reranker);
    }
    let pooled = VECTORS.iter().find_map(|name| output(name)).or(output(VECTOR));
    match pooled {
        Some(result) => embedding(dir, result, files),
        None => {
            let found: Vec<_> =
                graph.outputs.iter().map(|o| format!("'{}', {}", o.name, o.kind)).collect();
            Err((
                format!(
                    "its outputs are {}; expected one of last_hidden_state, token_embeddings, \
                     sentence_embedding (an encoder's) and logits (a classifier's)",
                    found.join("; ")
                ),
                "export the model for one of these tasks, or make a package with `forebay model \
                 export`"
                    .to_owned(),
            ))
        }
    }
}

fn export_instead() -> String {
    "make a package of it with `forebay model export`".to_owned()
}

fn embedding(dir: &Path, result: &Port, files: &Files) -> Result<Made, Refusal> {
    let steps = Steps::read(dir, &files.modules)?;
    let rank = if result.name == VECTOR { 2 } else { 3 };
    let width = width(result, rank)?.or(json::first_count(&files.config, &json::WIDTHS));
    let Some(width) = width else {
        return Err((
            format!("output '{}' is {}, of an unknown length", result.name, result.kind),
            "state hidden_size in config.json".to_owned(),
        ));
    };
    let modes = if rank == 2 { vec![] } else { steps.modes };
    let whole = width.saturating_mul(modes.len().max(1) as u32);
    let dimension = json::count(&files.sentence_transformers["truncate_dim"])
        .filter(|dimension| *dimension < whole);
    let length = dimension.unwrap_or(whole);
    Ok(Made {
        about: format!("Sentence embeddings, {length} dimensions"),
        is_pair: false,
        result: result.name.clone(),
        outputs: vec![("embedding".to_owned(), format!("FLOAT[{length}]"))],
        head: Head::Pool { modes, normalize: steps.normalize, dimension },
        pools_prompts: steps.pools_prompts,
    })
}

/// The last dimension of an output, if it is fixed.
fn width(output: &Port, rank: usize) -> Result<Option<u32>, Refusal> {
    match &output.kind {
        Kind::Tensor(element, shape) if matches!(element.name(), "float" | "float16") => {
            match shape.as_deref() {
                None => return Ok(None),
                Some(dims) if dims.len() == rank => {
                    return Ok(match dims.last() {
                        Some(Dim::Fixed(size)) => Some(*size),
                        _ => None,
                    });
                }
                Some(_) => {}
            }
        }
        _ => {}
    }
    Err((
        format!("output '{}' is {}, expected float of {rank} dimensions", output.name, output.kind),
        export_instead(),
    ))
}

/// What sentence-transformers does with the vectors of tokens.
struct Steps {
    modes: Vec<Pooling>,
    normalize: bool,
    pools_prompts: bool,
}

impl Steps {
    /// By `modules.json`; a plain encoder's is the mean, as sentence-transformers takes it.
    fn read(dir: &Path, modules: &Value) -> Result<Self, Refusal> {
        let mut steps = Self { modes: vec![Pooling::Mean], normalize: false, pools_prompts: true };
        for module in modules.as_array().into_iter().flatten() {
            let class = module["type"].as_str().unwrap_or_default();
            match class.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Normalize" => steps.normalize = true,
                "Pooling" => {
                    let folder = module["path"].as_str().unwrap_or_default();
                    let config = json::read(dir, &format!("{folder}/config.json"))?;
                    steps.modes = pooling(folder, &config)?;
                    steps.pools_prompts = config["include_prompt"].as_bool().unwrap_or(true);
                }
                other => {
                    return Err((
                        format!(
                            "modules.json has a module '{other}', whose weights are in no ONNX file; \
                             expected Transformer, Pooling and Normalize"
                        ),
                        export_instead(),
                    ));
                }
            }
        }
        Ok(steps)
    }
}

/// By one name or several, or by a switch for each as older files have them.
fn pooling(folder: &str, config: &Value) -> Result<Vec<Pooling>, Refusal> {
    const SWITCHES: [(&str, Pooling); 6] = [
        ("pooling_mode_cls_token", Pooling::Cls),
        ("pooling_mode_max_tokens", Pooling::Max),
        ("pooling_mode_mean_tokens", Pooling::Mean),
        ("pooling_mode_mean_sqrt_len_tokens", Pooling::MeanSqrtLenTokens),
        ("pooling_mode_weightedmean_tokens", Pooling::WeightedMean),
        ("pooling_mode_lasttoken", Pooling::LastToken),
    ];
    let refuse = |found: &Value| {
        let problem = format!("{folder}/config.json has the pooling {found}, which is not known");
        Err((problem, export_instead()))
    };
    let named = match &config["pooling_mode"] {
        Value::Null => {
            let on = SWITCHES.iter().filter(|(name, _)| config[name] == true);
            let on: Vec<_> = on.map(|(_, mode)| *mode).collect();
            return Ok(if on.is_empty() { vec![Pooling::Mean] } else { on });
        }
        Value::Array(names) => names.clone(),
        name => vec![name.clone()],
    };
    let modes = named.iter().map(|name| serde_json::from_value(name.clone()));
    match modes.collect::<Result<Vec<Pooling>, _>>() {
        Ok(modes) if !modes.is_empty() => Ok(modes),
        _ => refuse(&config["pooling_mode"]),
    }
}

/// A classifier of one text, or of two if it says that it is a cross-encoder or has one label.
fn scores(logits: &Port, files: &Files, is_reranker: bool) -> Result<Made, Refusal> {
    let config = &files.config;
    let labels = labels(config)?;
    let count = labels.len();
    if let Some(found) = width(logits, 2)?.filter(|found| *found as usize != count) {
        return Err((
            format!("output 'logits' is {}, and config.json names {count} labels", logits.kind),
            format!("correct id2label in config.json: it takes {found} names"),
        ));
    }
    let says_so = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    let is_pair = is_reranker
        || says_so("sentence_transformers")
        || says_so("sbert_ce_default_activation_function")
        || count == 1 && config["problem_type"].is_null();
    let activation = match is_pair {
        true => activation_of_pairs(files, count)?,
        false => match config["problem_type"].as_str() {
            Some("regression") => Activation::None,
            Some("multi_label_classification") => Activation::Sigmoid,
            _ if count == 1 => Activation::Sigmoid,
            _ => Activation::Softmax,
        },
    };
    let score = ("score".to_owned(), "FLOAT".to_owned());
    let (head, outputs) = if is_pair && count == 1 {
        (Head::Score { activation }, vec![score])
    } else {
        let mut outputs = vec![("label".to_owned(), "STRING".to_owned()), score];
        outputs.extend((count > 1).then(|| ("scores".to_owned(), format!("FLOAT[{count}]"))));
        (Head::Classify { activation, labels }, outputs)
    };
    let about = match (is_pair, count) {
        (true, 1) => "Relevance of a passage to a query".to_owned(),
        (true, _) => format!("Classification of two texts, {count} labels"),
        (false, _) => format!("Text classification, {count} labels"),
    };
    let result = logits.name.clone();
    Ok(Made { about, is_pair, result, outputs, head, pools_prompts: true })
}

/// The activation that a cross-encoder states, or else what sentence-transformers takes.
fn activation_of_pairs(files: &Files, count: usize) -> Result<Activation, Refusal> {
    let config = &files.config;
    // The newest place first.
    let stated = files.sentence_transformers["activation_fn"]
        .as_str()
        .or(config["sentence_transformers"]["activation_fn"].as_str())
        .or(config["sbert_ce_default_activation_function"].as_str());
    match stated.map(|name| name.rsplit('.').next().unwrap_or(name)) {
        None if count == 1 => Ok(Activation::Sigmoid),
        None | Some("Identity") => Ok(Activation::None),
        Some("Sigmoid") => Ok(Activation::Sigmoid),
        Some(other) => Err((
            format!("it names the activation '{other}', expected Sigmoid or Identity"),
            export_instead(),
        )),
    }
}

/// The names of the labels, by number; transformers' own if there are none.
fn labels(config: &Value) -> Result<Vec<String>, Refusal> {
    let Some(named) = config["id2label"].as_object() else {
        let count = json::count(&config["num_labels"]).unwrap_or(2);
        return Ok((0..count).map(|label| format!("LABEL_{label}")).collect());
    };
    let label = |index: usize| named.get(&index.to_string())?.as_str().map(str::to_owned);
    (0..named.len()).map(label).collect::<Option<Vec<_>>>().filter(|l| !l.is_empty()).ok_or_else(
        || {
            (
                format!("config.json: id2label does not name the labels 0 to {}", named.len()),
                "correct it: each number once, from 0, with a text".to_owned(),
            )
        },
    )
}
