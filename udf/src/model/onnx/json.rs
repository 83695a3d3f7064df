//! The small JSON files of a model's folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde_json::Value;

use super::described::Refusal;

/// An object of JSON, or an array; `Null` if the file is not there.
pub(super) fn read(dir: &Path, name: &str) -> Result<Value, Refusal> {
    let refuse = |problem: String| {
        (format!("{name} {problem}"), format!("fetch {name} again, or correct it"))
    };
    match fs::read(dir.join(name)) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|e| refuse(format!("is not valid JSON: {e}")))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(refuse(format!("cannot be read: {error}"))),
    }
}

/// What configurations call the length of a token's vector.
pub(super) const WIDTHS: [&str; 4] = ["hidden_size", "n_embd", "d_model", "dim"];
/// What they call the number of tokens that a model has positions for.
pub(super) const POSITIONS: [&str; 2] = ["max_position_embeddings", "n_positions"];

/// The first of these that is there.
pub(super) fn first_count(object: &Value, keys: &[&str]) -> Option<u32> {
    keys.iter().find_map(|key| count(&object[*key]))
}

/// A number that counts something, if it is one: files write huge ones for "no limit".
pub(super) fn count(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|number| *number > 0)
}

/// The JSON files of a model of texts.
pub(super) struct Files {
    pub(super) config: Value,
    pub(super) modules: Value,
    pub(super) sentence_transformers: Value,
}

impl Files {
    pub(super) fn read(dir: &Path) -> Result<Self, Refusal> {
        Ok(Self {
            config: read(dir, "config.json")?,
            modules: read(dir, "modules.json")?,
            sentence_transformers: read(dir, "config_sentence_transformers.json")?,
        })
    }
}
