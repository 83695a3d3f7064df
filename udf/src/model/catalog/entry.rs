//! What a catalog holds under a name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::ModelError;
use crate::model::declaration::ModelDeclaration;
use crate::model::options::ModelOptions;

/// A model as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CatalogEntry {
    /// The text after `COMMENT`, or the package's description.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// License of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<String>,
    /// Where the weights come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Whether it lives in this process only.
    #[serde(skip)]
    pub temporary: bool,
    /// Options as given in `WITH` and `ALTER MODEL`.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// The package's values with the options applied.
    pub declaration: ModelDeclaration,
}

impl CatalogEntry {
    /// The model's name in SQL, in the case in which it was created.
    pub fn name(&self) -> &str {
        &self.declaration.name
    }

    /// This entry with more options, which override earlier ones.
    ///
    /// # Errors
    /// [`ModelError::UnknownOption`] or [`ModelError::InvalidValue`].
    pub fn with_options<K: AsRef<str>, V: AsRef<str>>(
        mut self,
        pairs: &[(K, V)],
    ) -> Result<Self, ModelError> {
        let options = ModelOptions::try_from_pairs(pairs.iter().map(|(key, value)| (key, value)))?;
        self.declaration = self.declaration.with_options(&options)?;
        let key = |key: &K| key.as_ref().trim().to_lowercase();
        self.options.extend(pairs.iter().map(|(k, value)| (key(k), value.as_ref().to_owned())));
        Ok(self)
    }
}

/// What `CREATE MODEL` does when the name is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfExists {
    /// `CREATE MODEL`: an error.
    Fail,
    /// `CREATE OR REPLACE MODEL`.
    Replace,
    /// `CREATE MODEL IF NOT EXISTS`: the model there is stays.
    Keep,
}
