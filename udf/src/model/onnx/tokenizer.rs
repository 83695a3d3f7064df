//! How texts are cut and filled up: by `tokenizer.json` and what stands beside it.

use std::path::Path;

use serde_json::Value;
use tokenizers::{PostProcessor, Tokenizer};

use super::described::Refusal;
use super::json::{self, Files};
use crate::model::declaration::Side;

const FILE: &str = "tokenizer.json";
/// Model types that count positions from behind the padding token's.
const COUNT_FROM_PADDING: [&str; 6] =
    ["roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"];

/// What `transform` says of a tokenizer.
pub(super) struct Tokens {
    pub(super) file: String,
    pub(super) max_tokens: u32,
    pub(super) pad_id: i64,
    pub(super) truncation: Side,
}

impl Tokens {
    pub(super) fn read(dir: &Path, files: &Files, is_pair: bool) -> Result<Self, Refusal> {
        if !dir.join(FILE).is_file() {
            return Err((
                format!("it takes token ids, and there is no {FILE} in {}", dir.display()),
                "fetch it from where the model is, or make it: AutoTokenizer.from_pretrained(NAME)\
                 .save_pretrained(FOLDER)"
                    .to_owned(),
            ));
        }
        let tokenizer = Tokenizer::from_file(dir.join(FILE)).map_err(|error| {
            (format!("{FILE} cannot be read: {error}"), format!("fetch {FILE} again"))
        })?;
        let own = json::read(dir, FILE)?;
        let about = json::read(dir, "tokenizer_config.json")?;
        check_case(dir, &own, &about)?;
        let pad_id = pad_id(&tokenizer, &own, &about, &files.config)?;
        let max_tokens = max_tokens(dir, &about, &files.config, pad_id)?;
        let special = tokenizer.get_post_processor().map_or(0, |p| p.added_tokens(is_pair));
        if max_tokens as usize <= special {
            return Err((
                format!("it takes {max_tokens} tokens, and {special} of them are special ones"),
                "correct model_max_length in tokenizer_config.json".to_owned(),
            ));
        }
        if !is_pair {
            check_types(&tokenizer)?;
        }
        let side = about["truncation_side"].as_str().or(own["truncation"]["direction"].as_str());
        let truncation = match side.map(str::to_lowercase).as_deref() {
            Some("left") => Side::Left,
            _ => Side::Right,
        };
        Ok(Self { file: FILE.to_owned(), max_tokens, pad_id, truncation })
    }
}

/// Programs of one text get zeros for its token types.
fn check_types(tokenizer: &Tokenizer) -> Result<(), Refusal> {
    let encoding = tokenizer.encode("a", true);
    if encoding.is_ok_and(|encoding| encoding.get_type_ids().iter().any(|kind| *kind != 0)) {
        Err((
            "its tokenizer gives token types other than 0 to single texts".to_owned(),
            "make a package of it with `forebay model export`".to_owned(),
        ))
    } else {
        Ok(())
    }
}

/// What sentence-transformers says, or else the tokenizer; fewer if the model has not as many positions.
fn max_tokens(dir: &Path, about: &Value, config: &Value, pad_id: i64) -> Result<u32, Refusal> {
    let sentences = json::read(dir, "sentence_bert_config.json")?;
    let kind = config["model_type"].as_str().unwrap_or_default();
    let reserved =
        if COUNT_FROM_PADDING.contains(&kind) { u32::try_from(pad_id + 1).unwrap_or(0) } else { 0 };
    let positions = json::first_count(config, &json::POSITIONS)
        .map(|positions| positions.saturating_sub(reserved));
    let stated = json::count(&sentences["max_seq_length"])
        .or_else(|| json::count(&about["model_max_length"]));
    stated.into_iter().chain(positions).min().ok_or_else(|| {
        (
            "nothing says how many tokens the model takes".to_owned(),
            "state it: model_max_length in tokenizer_config.json".to_owned(),
        )
    })
}

/// What fills a batch up. Programs with a mask do not look at it.
fn pad_id(
    tokenizer: &Tokenizer,
    own: &Value,
    about: &Value,
    config: &Value,
) -> Result<i64, Refusal> {
    // A text, or an object that says more about it.
    let token = about["pad_token"].as_str().or(about["pad_token"]["content"].as_str());
    let of_token = token.and_then(|token| tokenizer.token_to_id(token)).map(i64::from);
    let stated = || own["padding"]["pad_id"].as_i64().or(config["pad_token_id"].as_i64());
    of_token.or_else(stated).ok_or_else(|| {
        (
            "its tokenizer has no padding token".to_owned(),
            "name one: pad_token in tokenizer_config.json".to_owned(),
        )
    })
}

/// Refuses settings that the model's own library would follow and `tokenizer.json` does not hold.
fn check_case(dir: &Path, own: &Value, about: &Value) -> Result<(), Refusal> {
    let folds = folds_case(&own["normalizer"]);
    let sentences = json::read(dir, "sentence_bert_config.json")?;
    let asked = [
        ("sentence_bert_config.json", sentences["do_lower_case"].as_bool().filter(|folds| *folds)),
        ("tokenizer_config.json", about["do_lower_case"].as_bool()),
    ];
    let is_of_bert = own["normalizer"]["type"] == "BertNormalizer";
    let differs = |(file, asked): &(&str, Option<bool>)| {
        let counts = is_of_bert || *file == "sentence_bert_config.json";
        counts && asked.is_some_and(|asked| asked != folds)
    };
    match asked.iter().find(|one| differs(one)) {
        Some((file, _)) => Err((
            format!("{file} says do_lower_case = {}, and {FILE} does otherwise", !folds),
            "save the tokenizer anew: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
                .to_owned(),
        )),
        None => Ok(()),
    }
}

fn folds_case(normalizer: &Value) -> bool {
    let inner = normalizer["normalizers"].as_array().into_iter().flatten();
    normalizer["type"] == "Lowercase"
        || normalizer["lowercase"].as_bool().unwrap_or(false)
        || inner.into_iter().any(folds_case)
}
