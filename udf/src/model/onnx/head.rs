//! What a program of texts gives, and what its model makes of it: as the folder's files say.

use std::path::Path;

use serde_json::Value;

use super::described::Refusal;
use super::graph::{Dim, Graph, Kind, Port};
use super::json::{self, Files};
use crate::model::head::{Activation, Dense, Function, Head, Pooling};
use crate::model::location::is_safe_name;

/// What a model makes of texts.
pub(super) struct Made {
    pub(super) about: String,
    pub(super) is_pair: bool,
    /// The program's result that counts.
    pub(super) result: String,
    pub(super) outputs: Vec<(String, String)>,
    pub(super) head: Head,
    /// What of the tokenizer's knowledge the head needs, beside what the program takes.
    pub(super) more_arguments: &'static [&'static str],
    /// Whether the tokens of a prompt count in the pooling.
    pub(super) pools_prompts: bool,
}

const VECTORS: [&str; 2] = ["token_embeddings", "last_hidden_state"];
const VECTOR: &str = "sentence_embedding";

pub(super) fn of(dir: &Path, graph: &Graph, files: &Files) -> Result<Made, Refusal> {
    let output = |name: &str| graph.outputs.iter().find(|output| output.name == name);
    let is_reranker = files.sentence_transformers["model_type"] == "CrossEncoder";
    if let Some(logits) = output("logits").filter(|_| files.modules.is_null() || is_reranker) {
        return if is_tagger(&files.config) {
            tags(logits, files)
        } else {
            scores(logits, files, is_reranker)
        };
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
    if rank == 2 && !steps.dense.is_empty() {
        return Err((
            format!(
                "output '{VECTOR}' may have gone through the modules of modules.json that have weights \
                 (Dense), or not"
            ),
            "export the model with the vectors of its tokens as an output (token_embeddings)"
                .to_owned(),
        ));
    }
    let modes = if rank == 2 { vec![] } else { steps.modes };
    let pooled = width.saturating_mul(modes.len().max(1) as u32);
    let whole = steps.dense_width.unwrap_or(pooled);
    let dimension = json::count(&files.sentence_transformers["truncate_dim"])
        .filter(|dimension| *dimension < whole);
    let length = dimension.unwrap_or(whole);
    Ok(Made {
        about: format!("Sentence embeddings, {length} dimensions"),
        is_pair: false,
        result: result.name.clone(),
        outputs: vec![("embedding".to_owned(), format!("FLOAT[{length}]"))],
        head: Head::Pool { modes, dense: steps.dense, normalize: steps.normalize, dimension },
        more_arguments: &[],
        pools_prompts: steps.pools_prompts,
    })
}

/// The last dimension of an output, if it is fixed.
pub(super) fn width(output: &Port, rank: usize) -> Result<Option<u32>, Refusal> {
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
    dense: Vec<Dense>,
    /// How many numbers the last of them gives.
    dense_width: Option<u32>,
    normalize: bool,
    pools_prompts: bool,
}

impl Steps {
    /// By `modules.json`; a plain encoder's is the mean, as sentence-transformers takes it.
    fn read(dir: &Path, modules: &Value) -> Result<Self, Refusal> {
        let mut steps = Self {
            modes: vec![Pooling::Mean],
            dense: vec![],
            dense_width: None,
            normalize: false,
            pools_prompts: true,
        };
        for module in modules.as_array().into_iter().flatten() {
            let class = module["type"].as_str().unwrap_or_default();
            let folder = module["path"].as_str().unwrap_or_default();
            match class.rsplit('.').next().unwrap_or_default() {
                "Transformer" => {}
                "Normalize" => steps.normalize = true,
                "Pooling" | "Dense" if steps.normalize => {
                    return Err((
                        format!(
                            "modules.json has {folder} behind a Normalize, expected in front of it"
                        ),
                        export_instead(),
                    ));
                }
                "Pooling" => {
                    let config = json::read(dir, &format!("{folder}/config.json"))?;
                    steps.modes = pooling(folder, &config)?;
                    steps.pools_prompts = config["include_prompt"].as_bool().unwrap_or(true);
                }
                "Dense" => {
                    let (dense, width) = dense(dir, folder)?;
                    steps.dense.push(dense);
                    steps.dense_width = Some(width);
                }
                other => {
                    return Err((
                        format!(
                            "modules.json has a module '{other}', which is in no ONNX file; expected \
                             Transformer, Pooling, Dense and Normalize"
                        ),
                        export_instead(),
                    ));
                }
            }
        }
        Ok(steps)
    }
}

/// A module that multiplies by a matrix, and how many numbers it gives.
fn dense(dir: &Path, folder: &str) -> Result<(Dense, u32), Refusal> {
    let name = format!("{folder}/config.json");
    let config = json::read(dir, &name)?;
    let refuse = |problem: String| Err((format!("{name} {problem}"), export_instead()));
    let stated = config["activation_function"].as_str().unwrap_or_default();
    let function = match stated.rsplit('.').next().unwrap_or_default() {
        "Identity" => Function::Identity,
        "Tanh" => Function::Tanh,
        "ReLU" => Function::Relu,
        "Sigmoid" => Function::Sigmoid,
        other => {
            return refuse(format!(
                "has the activation '{other}', expected Identity, Tanh, ReLU or Sigmoid"
            ));
        }
    };
    for key in ["module_input_name", "module_output_name"] {
        match &config[key] {
            Value::Null => {}
            found if found == VECTOR => {}
            found => return refuse(format!("has the {key} {found}, expected '{VECTOR}'")),
        }
    }
    let Some(width) = json::count(&config["out_features"]) else {
        return refuse("states no out_features".to_owned());
    };
    let weights = format!("{folder}/model.safetensors");
    if !is_safe_name(&weights) || !dir.join(&weights).is_file() {
        return Err((
            format!("the weights of its module Dense are not in {weights}"),
            "fetch all files of the model; if they are in another format, save it anew: \
             SentenceTransformer(FOLDER).save(FOLDER)"
                .to_owned(),
        ));
    }
    Ok((Dense { weights, function }, width))
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
    let says_so = |key: &str| config.get(key).is_some_and(|value| !value.is_null());
    let is_pair = is_reranker
        || says_so("sentence_transformers")
        || says_so("sbert_ce_default_activation_function")
        || count == 1 && config["problem_type"].is_null();
    let (head, outputs) = if is_pair {
        check_labels(logits, 2, count)?;
        let activation = activation_of_pairs(files, count)?;
        match count {
            1 => (Head::Score { activation }, vec![("score".to_owned(), "FLOAT".to_owned())]),
            _ => (Head::Classify { activation, labels }, label_columns(count)),
        }
    } else {
        classes(logits, config)?
    };
    let about = match (is_pair, count) {
        (true, 1) => "Relevance of a passage to a query".to_owned(),
        (true, _) => format!("Classification of two texts, {count} labels"),
        (false, _) => format!("Text classification, {count} labels"),
    };
    let result = logits.name.clone();
    Ok(Made { about, is_pair, result, outputs, head, more_arguments: &[], pools_prompts: true })
}

/// Whether a model labels tokens, by the class that wrote its files.
fn is_tagger(config: &Value) -> bool {
    let names = config["architectures"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).any(|name| name.ends_with("ForTokenClassification"))
}

/// A classifier of tokens.
fn tags(logits: &Port, files: &Files) -> Result<Made, Refusal> {
    let labels = labels(&files.config)?;
    check_labels(logits, 3, labels.len())?;
    let column = |(name, sql_type): (&str, &str)| (name.to_owned(), sql_type.to_owned());
    let columns =
        [("labels", "STRING[]"), ("scores", "FLOAT[]"), ("starts", "INT[]"), ("ends", "INT[]")];
    Ok(Made {
        about: format!("Token classification, {} labels", labels.len()),
        is_pair: false,
        result: logits.name.clone(),
        outputs: columns.map(column).to_vec(),
        head: Head::Tag { labels },
        more_arguments: &["token_starts", "token_ends"],
        pools_prompts: true,
    })
}

/// Checks that a result of so many dimensions has a number for each label.
fn check_labels(logits: &Port, rank: usize, count: usize) -> Result<(), Refusal> {
    match width(logits, rank)?.filter(|found| *found as usize != count) {
        Some(found) => Err((
            format!("output 'logits' is {}, and config.json names {count} labels", logits.kind),
            format!("correct id2label in config.json: it takes {found} names"),
        )),
        None => Ok(()),
    }
}

/// A classifier of one input: what it makes of a row's numbers, and what is then given out.
pub(super) fn classes(
    logits: &Port,
    config: &Value,
) -> Result<(Head, Vec<(String, String)>), Refusal> {
    let labels = labels(config)?;
    check_labels(logits, 2, labels.len())?;
    let activation = match config["problem_type"].as_str() {
        Some("regression") => Activation::None,
        Some("multi_label_classification") => Activation::Sigmoid,
        _ if labels.len() == 1 => Activation::Sigmoid,
        _ => Activation::Softmax,
    };
    let outputs = label_columns(labels.len());
    Ok((Head::Classify { activation, labels }, outputs))
}

/// What every model gives that chooses among so many labels.
fn label_columns(count: usize) -> Vec<(String, String)> {
    let mut columns =
        vec![("label".to_owned(), "STRING".to_owned()), ("score".to_owned(), "FLOAT".to_owned())];
    columns.extend((count > 1).then(|| ("scores".to_owned(), format!("FLOAT[{count}]"))));
    columns
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
