//! The texts that a program's numbers stand for.

use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray};

use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package};

/// The texts of one output, by number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Labels(StringArray);

impl Labels {
    /// Reads a file of the package.
    pub(super) fn load(
        model: &ModelDeclaration,
        package: &Package,
        file: &str,
    ) -> Result<Self, RuntimeError> {
        let problem = |problem: String| RuntimeError::Load {
            model: model.name.clone(),
            file: file.to_owned(),
            problem: format!("{problem}; expected a JSON list of texts"),
        };
        let opened = File::open(package.file(file)).map_err(|error| problem(error.to_string()))?;
        let labels: Vec<String> = serde_json::from_reader(BufReader::new(opened))
            .map_err(|error| problem(error.to_string()))?;
        Ok(Self::of(&labels))
    }

    /// Of texts in the order of their numbers, from 0.
    pub(super) fn of<T: AsRef<str>>(labels: &[T]) -> Self {
        Self(StringArray::from_iter_values(labels))
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The text of each index, or the first index that stands for none.
    pub(super) fn texts(&self, indices: &Int64Array) -> Result<ArrayRef, i64> {
        let text = |index: &i64| {
            let at = usize::try_from(*index).ok().filter(|at| *at < self.count());
            at.map(|at| self.0.value(at)).ok_or(*index)
        };
        let texts = indices.values().iter().map(text).collect::<Result<Vec<_>, i64>>()?;
        Ok(Arc::new(StringArray::from_iter_values(texts)))
    }
}
