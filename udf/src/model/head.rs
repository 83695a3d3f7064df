//! What is made of a program's result before it is an output: the last steps of a model that its
//! program leaves to whoever calls it, as ONNX programs do.

use arrow::datatypes::{DataType, Fields};
use serde::{Deserialize, Serialize};

use super::signature::{columns_text, type_name};
use crate::error::quoted;

/// The last steps of a model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Head {
    /// One vector for each of a row's tokens → one of the row.
    Pool {
        /// One after the other, side by side; none if the result is one vector already.
        modes: Vec<Pooling>,
        /// What the vector then goes through.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        dense: Vec<Dense>,
        /// Whether it gets the length 1.
        #[serde(default)]
        normalize: bool,
        /// How many numbers are kept at last, the first ones; all if it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dimension: Option<u32>,
    },
    /// One number per label → the best label, its score, and if there are several the scores of all.
    Classify {
        /// What makes scores of the numbers.
        activation: Activation,
        /// In the order of the numbers.
        labels: Vec<String>,
    },
    /// One number → one score.
    Score {
        /// What makes a score of the number.
        activation: Activation,
    },
    /// One number per label, of each of a row's tokens → lists of the tokens' best labels, their scores, and
    /// where in the text the tokens begin and end.
    Tag {
        /// In the order of the numbers.
        labels: Vec<String>,
    },
}

impl Head {
    /// The matrices that it multiplies by.
    pub fn dense(&self) -> &[Dense] {
        match self {
            Self::Pool { dense, .. } => dense,
            Self::Classify { .. } | Self::Score { .. } | Self::Tag { .. } => &[],
        }
    }

    /// Checks that the declared outputs are what it makes.
    pub(super) fn check(&self, outputs: &Fields) -> Result<(), String> {
        let types: Vec<String> = outputs.iter().map(|field| type_name(field.data_type())).collect();
        let types: Vec<&str> = types.iter().map(String::as_str).collect();
        let is_vector = |field: &DataType| match field {
            DataType::FixedSizeList(item, _) => item.data_type() == &DataType::Float32,
            _ => false,
        };
        let (fits, expected) = match self {
            Self::Pool { .. } => (
                matches!(&outputs[..], [output] if is_vector(output.data_type())),
                "one vector of FLOAT".to_owned(),
            ),
            Self::Score { .. } => (types == ["FLOAT"], "one FLOAT".to_owned()),
            Self::Classify { labels, .. } => {
                let scores = format!("FLOAT[{}]", labels.len());
                let expected = match labels.len() {
                    1 => vec!["STRING", "FLOAT"],
                    _ => vec!["STRING", "FLOAT", &scores],
                };
                (!labels.is_empty() && types == expected, expected.join(", "))
            }
            Self::Tag { labels } => {
                let expected = ["STRING[]", "FLOAT[]", "INT[]", "INT[]"];
                (!labels.is_empty() && types == expected, expected.join(", "))
            }
        };
        if fits {
            Ok(())
        } else {
            Err(format!(
                "runtime.head makes {expected} of a result, and the outputs are {}",
                quoted(&columns_text(outputs))
            ))
        }
    }
}

/// A matrix that a vector is multiplied by, as sentence-transformers' module of this name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    /// File in the package, in the format safetensors: `linear.weight`, and `linear.bias` if there is one.
    pub weights: String,
    /// What is done with each number of the result.
    #[serde(default)]
    pub function: Function,
}

/// A function of one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// The number itself, unchanged.
    #[default]
    Identity,
    /// The hyperbolic tangent, between -1 and 1.
    Tanh,
    /// The number, or 0 if it is below.
    Relu,
    /// Between 0 and 1.
    Sigmoid,
}

/// How the vectors of tokens become one; sentence-transformers' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// The first token's, which is a special one as a rule.
    Cls,
    /// By place, the largest number of all.
    Max,
    /// The mean of all, by place.
    Mean,
    /// The sum, divided by the square root of how many there are.
    MeanSqrtLenTokens,
    /// The mean, later tokens weighing more.
    #[serde(rename = "weightedmean")]
    WeightedMean,
    /// The last token's, padding not counted.
    #[serde(rename = "lasttoken")]
    LastToken,
}

/// What makes scores of a program's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// None: the numbers are scores already.
    None,
    /// Each by itself, to between 0 and 1.
    Sigmoid,
    /// All of a row together, to a sum of 1.
    Softmax,
}
