//! How far a program in fewer bits is off, as the exporter measured it over a sample.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::number::Number;

/// What was measured over so many rows: one of the measures or several, by what the model gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// Rows of the sample that were compared.
    pub rows: u64,
    /// Of embeddings: the mean of the cosines between those of either program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_cosine: Option<Number>,
    /// The least of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_cosine: Option<Number>,
    /// Of labels: the share of rows, or tokens, whose best one is the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_labels: Option<Number>,
    /// Of scores: their correlation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation: Option<Number>,
}

impl Quality {
    fn measures(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let all = [
            ("mean cosine", self.mean_cosine),
            ("least cosine", self.least_cosine),
            ("equal labels", self.equal_labels),
            ("correlation", self.correlation),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?.0)))
    }

    /// What is wrong with it.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.rows == 0 || self.measures().next().is_none() {
            return Err("states no rows, or no measure".to_owned());
        }
        match self.measures().find(|(_, value)| !(-1.0..=1.0).contains(value)) {
            Some((name, value)) => Err(format!("states {name} {value}, expected -1 to 1")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Quality {
    /// `mean cosine 0.9967, least cosine 0.9888 with fp32, over 256 rows`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let measures: Vec<String> =
            self.measures().map(|(name, value)| format!("{name} {value}")).collect();
        write!(f, "{} with fp32, over {} rows", measures.join(", "), self.rows)
    }
}
