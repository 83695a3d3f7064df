//! Matrices behind a program, as sentence-transformers' module `Dense` has them.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::model::Function;

const WEIGHT: &str = "linear.weight";
const BIAS: &str = "linear.bias";

/// A matrix and what is done with its results, as the CPU computes them.
#[derive(Debug)]
pub(super) struct Layer {
    /// By number of the result: what each number of the vector counts.
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
    taken: usize,
    function: Function,
}

impl Layer {
    /// Reads a file in the format safetensors.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(super) fn load(path: &Path, function: Function) -> Result<Self, String> {
        let again = |problem: String| format!("{problem}; fetch the file again");
        let bytes = fs::read(path).map_err(|error| again(error.to_string()))?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| again(format!("it is not a valid safetensors file: {error:?}")))?;
        let weight = tensors
            .tensor(WEIGHT)
            .map_err(|_| format!("it has no {WEIGHT}; name the file of a module Dense"))?;
        let [given, taken] = *weight.shape() else {
            return Err(format!("{WEIGHT} has the shape {:?}, expected a matrix", weight.shape()));
        };
        let bias = tensors.tensor(BIAS).ok();
        if let Some(bias) = bias.as_ref().filter(|bias| bias.shape() != [given]) {
            let (found, expected) = (bias.shape(), [given]);
            return Err(format!("{BIAS} has the shape {found:?}, expected {expected:?}"));
        }
        let weights = numbers(&weight)?;
        if weights.is_empty() {
            return Err(format!("{WEIGHT} is empty"));
        }
        Ok(Self { weights, bias: bias.as_ref().map(numbers).transpose()?, taken, function })
    }

    /// How many numbers the result has.
    pub(super) fn width(&self) -> usize {
        self.weights.len() / self.taken
    }

    /// The result for each vector of so many numbers, or what was expected instead.
    pub(super) fn apply(&self, vectors: &[f32], width: usize) -> Result<Vec<f32>, String> {
        if width != self.taken {
            return Err(format!("vectors of {} numbers, which {WEIGHT} takes", self.taken));
        }
        let mut results = Vec::with_capacity(vectors.len() / width * self.width());
        for vector in vectors.chunks_exact(width) {
            let products = self.weights.chunks_exact(width).map(|weights| dot(weights, vector));
            results.extend(products);
        }
        for result in results.chunks_exact_mut(self.width()) {
            for (number, bias) in result.iter_mut().zip(self.bias.iter().flatten()) {
                *number += bias;
            }
            result.iter_mut().for_each(|number| *number = applied(self.function, *number));
        }
        Ok(results)
    }
}

/// The sum of products, in eight sums, which a CPU adds at once.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let mut sums = [0.0_f32; 8];
    let (ones, others) = (one.chunks_exact(8), other.chunks_exact(8));
    let rest = ones.remainder().iter().zip(others.remainder()).map(|(a, b)| a * b).sum::<f32>();
    for (ones, others) in ones.zip(others) {
        for (sum, (a, b)) in sums.iter_mut().zip(ones.iter().zip(others)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

fn applied(function: Function, number: f32) -> f32 {
    match function {
        Function::Identity => number,
        Function::Tanh => number.tanh(),
        Function::Relu => number.max(0.0),
        Function::Sigmoid => 1.0 / (1.0 + (-number).exp()),
    }
}

fn numbers(tensor: &TensorView<'_>) -> Result<Vec<f32>, String> {
    let bytes = tensor.data();
    let halves = |number: fn([u8; 2]) -> f32| {
        bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    };
    match tensor.dtype() {
        Dtype::F32 => {
            Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        }
        Dtype::F16 => Ok(halves(|bytes| f16::from_le_bytes(bytes).to_f32())),
        Dtype::BF16 => Ok(halves(|bytes| bf16::from_le_bytes(bytes).to_f32())),
        other => Err(format!("its weights are {other:?}, expected floats of 32 or 16 bits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(weights: &[f32], bias: Option<&[f32]>, taken: usize, function: Function) -> Layer {
        let bias = bias.map(<[f32]>::to_vec);
        Layer { weights: weights.to_vec(), bias, taken, function }
    }

    #[test]
    fn vectors_are_multiplied_by_the_rows_of_the_matrix() {
        let layer = layer(&[1.0, 2.0, 3.0, -4.0, 0.0, 1.0], Some(&[0.5, -1.0]), 3, Function::Relu);
        assert_eq!(layer.width(), 2);
        let found = layer.apply(&[1.0, 1.0, 1.0, 0.0, 0.0, 2.0], 3).unwrap();
        assert_eq!(found, [6.5, 0.0, 6.5, 1.0]);
        assert!(layer.apply(&[1.0; 4], 4).unwrap_err().contains("vectors of 3 numbers"));
    }

    #[test]
    fn files_that_hold_something_else_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refusal = |bytes: &[u8]| {
            fs::write(file.path(), bytes).unwrap();
            Layer::load(file.path(), Function::Identity).unwrap_err()
        };
        assert!(refusal(b"").contains("it is not a valid safetensors file"));
        let header = |json: &str, values: usize| {
            let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
            bytes.extend(json.as_bytes());
            bytes.extend(vec![0; values]);
            bytes
        };
        let other = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        assert!(refusal(&header(other, 4)).contains("it has no linear.weight"));
        let flat = r#"{"linear.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        assert!(refusal(&header(flat, 4)).contains("has the shape [1], expected a matrix"));
        let short = r#"{"linear.weight":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
        assert!(refusal(&header(short, 4)).contains("it is not a valid safetensors file"));
        let ints = r#"{"linear.weight":{"dtype":"I32","shape":[1,1],"data_offsets":[0,4]}}"#;
        assert!(refusal(&header(ints, 4)).contains("expected floats"));
    }
}
