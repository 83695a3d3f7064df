//! A model's tokenizer, named so that any process can load it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::runtime_env::RuntimeEnv;
use parking_lot::Mutex;
use url::Url;

use super::tokens::ModelTokens;
use crate::error::{ModelError, RuntimeError};
use crate::model::{ModelDeclaration, Package, Pinned, TransformKind};

/// How many tokenizers a process keeps.
const KEPT: usize = 8;

/// The package of a tokenizer, pinned: `https://host/package#minilm@9a1290…`, which are the model's
/// name and the SHA-256 of the package's description. If that is in no file of the package, it follows
/// on lines of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenizerReference {
    location: Url,
    model: String,
    content_hash: String,
    description: Option<String>,
}

impl TokenizerReference {
    /// Of a model that takes text.
    ///
    /// # Errors
    /// [`ModelError::Signature`] if it takes none.
    pub fn of(model: &ModelDeclaration) -> Result<Self, ModelError> {
        if !matches!(model.transform, TransformKind::Tokenize { .. }) {
            return Err(ModelError::Signature {
                name: model.name.clone(),
                problem:
                    "it has no tokenizer, because it takes no text; name a model of texts, or \
                          none to count words"
                        .to_owned(),
            });
        }
        Ok(Self {
            location: model.location.clone(),
            model: model.name.clone(),
            content_hash: model.content_hash.clone(),
            description: model.description.clone(),
        })
    }

    /// What [`Display`](fmt::Display) wrote.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let parsed = || {
            let (named, description) = match text.split_once('\n') {
                Some((named, description)) => (named, Some(description.to_owned())),
                None => (text, None),
            };
            let (location, pinned) = named.rsplit_once('#')?;
            let (model, content_hash) = pinned.rsplit_once('@')?;
            let (model, content_hash) = (model.to_owned(), content_hash.to_owned());
            Some(Self { location: Url::parse(location).ok()?, model, content_hash, description })
        };
        match parsed() {
            Some(reference) => Ok(reference),
            None => exec_err!("'{text}' names no tokenizer, expected URL#model@hash"),
        }
    }

    /// The tokenizer, which is read once per process.
    pub(super) async fn load(&self, stores: &Arc<RuntimeEnv>) -> Result<Arc<ModelTokens>> {
        if let Some(tokens) = kept(&self.content_hash) {
            return Ok(tokens);
        }
        let pinned = Pinned {
            location: &self.location,
            content_hash: &self.content_hash,
            description: self.description.as_deref(),
        };
        let package =
            Box::pin(Package::fetch(pinned, stores)).await.map_err(|error| match error {
                unreachable @ ModelError::Unreachable { .. } => {
                    exec_datafusion_err!("{unreachable}")
                }
                other => other.into(),
            })?;
        let TransformKind::Tokenize { tokenizer, .. } = &package.manifest.transform else {
            return exec_err!("model '{}' has no tokenizer", self.model);
        };
        let tokens = ModelTokens::load(&package.file(tokenizer)).map_err(|problem| {
            let (model, file) = (self.model.clone(), tokenizer.clone());
            RuntimeError::Load { model, file, problem }
        })?;
        let tokens = Arc::new(tokens);
        keep(&self.content_hash, &tokens);
        Ok(tokens)
    }
}

impl fmt::Display for TokenizerReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}@{}", self.location, self.model, self.content_hash)?;
        self.description.iter().try_for_each(|description| write!(f, "\n{description}"))
    }
}

/// By the hashes of their packages, the least recently used first.
type Kept = Vec<(String, Arc<ModelTokens>)>;

static TOKENIZERS: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

fn kept(content_hash: &str) -> Option<Arc<ModelTokens>> {
    let mut kept = TOKENIZERS.lock();
    let at = kept.iter().position(|(hash, _)| hash == content_hash)?;
    let used = kept.remove(at);
    let tokens = Arc::clone(&used.1);
    kept.push(used);
    Some(tokens)
}

fn keep(content_hash: &str, tokens: &Arc<ModelTokens>) {
    let mut kept = TOKENIZERS.lock();
    kept.retain(|(hash, _)| hash != content_hash);
    kept.push((content_hash.to_owned(), Arc::clone(tokens)));
    if kept.len() > KEPT {
        kept.remove(0);
    }
}
