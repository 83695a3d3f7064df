//! The last steps of a model, on a program's result.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int32Array, ListArray, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use ort::value::DynValue;

use super::super::outputs::Unlike;
use super::dense::Layer;
use super::input::Run;
use super::output::floats;
use crate::model::{Activation, Head, Pooling};

/// The columns that a head, with these layers, makes of the result of a run.
pub(super) fn columns(
    head: &Head,
    layers: &[Layer],
    result: &DynValue,
    run: &Run,
) -> Result<Vec<ArrayRef>, Unlike> {
    let (rows, lengths) = (run.rows, run.lengths.as_slice());
    let (shape, values) = floats(result)?;
    let unlike = |expected: String| Unlike { expected, found: format!("float {shape:?}") };
    let size = |at: usize| shape.get(at).and_then(|size| usize::try_from(*size).ok());
    match head {
        Head::Pool { modes, normalize, dimension, .. } => {
            let width = size(shape.len().saturating_sub(1)).unwrap_or(0);
            let mut vectors = if modes.is_empty() {
                if shape.len() != 2 || size(0) != Some(rows) {
                    return Err(unlike(format!("one vector for each of {rows} rows")));
                }
                values
            } else {
                // What has no tokens of its own, as an image, has as many as the program makes of it.
                let made = size(1).unwrap_or(0).max(1);
                let all = vec![made; rows];
                let lengths = if run.has_tokens { lengths } else { &all };
                let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
                if shape.len() != 3 || size(0) != Some(rows) || size(1) != Some(longest) {
                    return Err(unlike(format!("a vector for {longest} tokens of {rows} rows")));
                }
                pool(modes, &values, lengths, longest, width)
            };
            let mut width = width * modes.len().max(1);
            for layer in layers {
                vectors = layer.apply(&vectors, width).map_err(unlike)?;
                width = layer.width();
            }
            Ok(vec![embeddings(vectors, width, *normalize, *dimension)?])
        }
        Head::Score { activation } => {
            let scores = logits(&shape, values, rows, 1)
                .ok_or_else(|| unlike(format!("one number for each of {rows} rows")))?;
            Ok(vec![Arc::new(Float32Array::from(activated(scores, 1, *activation)))])
        }
        Head::Classify { activation, labels } => {
            let count = labels.len();
            let scores = logits(&shape, values, rows, count)
                .ok_or_else(|| unlike(format!("{count} numbers for each of {rows} rows")))?;
            Ok(classified(activated(scores, count, *activation), labels))
        }
        Head::Tag { labels } => {
            let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
            let expected = [rows, longest, labels.len()];
            if (0..3).any(|at| size(at) != Some(expected[at])) || shape.len() != 3 {
                let count = labels.len();
                return Err(unlike(format!(
                    "{count} numbers for each of {longest} tokens of {rows} rows"
                )));
            }
            Ok(tagged(activated(values, labels.len(), Activation::Softmax), longest, run, labels))
        }
    }
}

fn logits(shape: &[i64], values: Vec<f32>, rows: usize, count: usize) -> Option<Vec<f32>> {
    let fits = shape.first().and_then(|found| usize::try_from(*found).ok()) == Some(rows)
        && values.len() == rows * count;
    fits.then_some(values)
}

/// One vector of each row's tokens, those of several modes side by side.
fn pool(
    modes: &[Pooling],
    values: &[f32],
    lengths: &[usize],
    longest: usize,
    width: usize,
) -> Vec<f32> {
    let mut pooled = Vec::with_capacity(lengths.len() * modes.len() * width);
    let rows = values.chunks_exact((longest * width).max(1));
    for (row, length) in rows.zip(lengths) {
        let tokens: Vec<&[f32]> = row.chunks_exact(width.max(1)).take((*length).max(1)).collect();
        for mode in modes {
            pooled.extend(pooled_by(*mode, &tokens, width));
        }
    }
    pooled
}

fn pooled_by(mode: Pooling, tokens: &[&[f32]], width: usize) -> Vec<f32> {
    let count = tokens.len() as f32;
    match mode {
        Pooling::Cls => tokens[0].to_vec(),
        Pooling::LastToken => tokens[tokens.len() - 1].to_vec(),
        Pooling::Max => {
            let mut most = vec![f32::NEG_INFINITY; width];
            for token in tokens {
                for (most, value) in most.iter_mut().zip(*token) {
                    // As libtorch does, a NaN stays one.
                    if value.is_nan() || *value > *most {
                        *most = *value;
                    }
                }
            }
            most
        }
        Pooling::Mean => weighted(tokens, width, |_| 1.0, count),
        Pooling::MeanSqrtLenTokens => weighted(tokens, width, |_| 1.0, count.sqrt()),
        Pooling::WeightedMean => {
            let all = count * (count + 1.0) / 2.0;
            weighted(tokens, width, |at| (at + 1) as f32, all)
        }
    }
}

fn weighted(tokens: &[&[f32]], width: usize, weight: fn(usize) -> f32, divisor: f32) -> Vec<f32> {
    let mut sum = vec![0.0; width];
    for (at, token) in tokens.iter().enumerate() {
        let weight = weight(at);
        for (sum, value) in sum.iter_mut().zip(*token) {
            *sum += weight * value;
        }
    }
    sum.iter_mut().for_each(|sum| *sum /= divisor);
    sum
}

/// Vectors of length 1, if they are to be, cut to so many numbers.
fn embeddings(
    mut vectors: Vec<f32>,
    width: usize,
    normalize: bool,
    dimension: Option<u32>,
) -> Result<ArrayRef, Unlike> {
    /// What libtorch divides by at least.
    const LEAST: f32 = 1e-12;
    let width = width.max(1);
    if normalize {
        for vector in vectors.chunks_exact_mut(width) {
            let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(LEAST);
            vector.iter_mut().for_each(|x| *x /= length);
        }
    }
    let kept = dimension.map_or(width, |dimension| width.min(dimension as usize));
    if kept < width {
        let cut = vectors.chunks_exact(width).flat_map(|vector| &vector[..kept]).copied();
        vectors = cut.collect();
    }
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let length = i32::try_from(kept).unwrap_or(i32::MAX);
    let values = Arc::new(Float32Array::from(vectors));
    let list = FixedSizeListArray::try_new(item, length, values, None);
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| Unlike {
        expected: "vectors of one length".to_owned(),
        found: error.to_string(),
    })
}

fn activated(mut logits: Vec<f32>, count: usize, activation: Activation) -> Vec<f32> {
    match activation {
        Activation::None => {}
        Activation::Sigmoid => logits.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp())),
        Activation::Softmax => {
            for row in logits.chunks_exact_mut(count.max(1)) {
                let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().for_each(|x| *x = (*x - most).exp());
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
    }
    logits
}

/// The best label and its score, the first of equals, and the scores of all.
fn classified(scores: Vec<f32>, labels: &[String]) -> Vec<ArrayRef> {
    let count = labels.len().max(1);
    let best: Vec<(usize, f32)> = scores.chunks_exact(count).map(highest).collect();
    let names = StringArray::from_iter_values(best.iter().map(|(at, _)| &labels[*at]));
    let best_scores = Float32Array::from_iter_values(best.iter().map(|(_, score)| *score));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(names), Arc::new(best_scores)];
    if labels.len() > 1 {
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        let length = i32::try_from(count).unwrap_or(i32::MAX);
        let values = Arc::new(Float32Array::from(scores));
        columns.push(Arc::new(FixedSizeListArray::new(item, length, values, None)));
    }
    columns
}

/// Of each row's tokens that are part of its text: the best label and its score, and where they are.
fn tagged(scores: Vec<f32>, longest: usize, run: &Run, labels: &[String]) -> Vec<ArrayRef> {
    let count = labels.len();
    let (mut names, mut best) = (vec![], vec![]);
    let (mut starts, mut ends, mut kept) = (vec![], vec![], vec![]);
    let mut spans = run.spans.iter();
    for (row, length) in scores.chunks_exact((longest * count).max(1)).zip(&run.lengths) {
        let before = names.len();
        for (token, (start, end)) in row.chunks_exact(count).zip(spans.by_ref().take(*length)) {
            if *start >= 0 {
                let (at, score) = highest(token);
                names.push(labels[at].as_str());
                best.push(score);
                starts.push(*start);
                ends.push(*end);
            }
        }
        kept.push(names.len() - before);
    }
    let offsets = OffsetBuffer::from_lengths(kept);
    let columns: [ArrayRef; 4] = [
        Arc::new(StringArray::from(names)),
        Arc::new(Float32Array::from(best)),
        Arc::new(Int32Array::from(starts)),
        Arc::new(Int32Array::from(ends)),
    ];
    let list = |values: ArrayRef| -> ArrayRef {
        let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        Arc::new(ListArray::new(item, offsets.clone(), values, None))
    };
    columns.into_iter().map(list).collect()
}

/// The place of the highest score, the first of equals, and the score.
fn highest(scores: &[f32]) -> (usize, f32) {
    let others = scores.iter().copied().enumerate().skip(1);
    others.fold((0, scores[0]), |best, one| if one.1 > best.1 { one } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_behind_a_row_do_not_count() {
        let values = [1.0, 2.0, 3.0, 6.0, 9.0, 9.0, 5.0, 5.0, 9.0, 9.0, 9.0, 9.0];
        let pooled = |mode| pool(&[mode], &values, &[2, 1], 3, 2);
        let root = 2_f32.sqrt();
        assert_eq!(pooled(Pooling::Cls), [1.0, 2.0, 5.0, 5.0]);
        assert_eq!(pooled(Pooling::LastToken), [3.0, 6.0, 5.0, 5.0]);
        assert_eq!(pooled(Pooling::Max), [3.0, 6.0, 5.0, 5.0]);
        assert_eq!(pooled(Pooling::Mean), [2.0, 4.0, 5.0, 5.0]);
        assert_eq!(pooled(Pooling::MeanSqrtLenTokens), [4.0 / root, 8.0 / root, 5.0, 5.0]);
        assert_eq!(pooled(Pooling::WeightedMean), [7.0 / 3.0, 14.0 / 3.0, 5.0, 5.0]);
    }
}
