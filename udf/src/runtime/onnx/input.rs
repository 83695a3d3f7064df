//! Prepared columns → a program's inputs.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type};
use half::{bf16, f16};
use ort::value::{DynValue, Tensor, TensorElementType};

use super::program::Input;
use crate::model::{Layout, Number, TransformKind};
use crate::transform::TokenColumn;

/// The inputs of one run, and what of the rows matters later.
pub(super) struct Run {
    pub(super) rows: usize,
    pub(super) values: Vec<DynValue>,
    /// Whether rows are lists of tokens.
    pub(super) has_tokens: bool,
    /// How many tokens each row has.
    pub(super) lengths: Vec<usize>,
    /// Where the tokens of all rows begin and end in their texts, if the model asks for it; -1 for those that
    /// are no part of it.
    pub(super) spans: Vec<(i32, i32)>,
    /// Rows times the longest.
    pub(super) padded: usize,
}

impl Run {
    pub(super) fn prepare(
        transform: &TransformKind,
        tokens: &[TokenColumn],
        inputs: &[Input],
        columns: &[ArrayRef],
    ) -> Result<Self, String> {
        let rows = columns.first().map_or(0, |column| column.len());
        match transform {
            TransformKind::Tokenize { pad_id, .. } => of_tokens(*pad_id, tokens, inputs, columns),
            TransformKind::Tensor => {
                let values =
                    inputs.iter().zip(columns).map(|(input, column)| tensor(input, column));
                let values = values.collect::<Result<_, _>>()?;
                Ok(Self::without_tokens(rows, values))
            }
            TransformKind::Image { crop, layout, mean, std, .. } => {
                let [input] = inputs else { return Err("it takes no pixels".to_owned()) };
                let values = vec![pixels(input, columns, *crop, *layout, [mean, std])?];
                Ok(Self::without_tokens(rows, values))
            }
        }
    }

    fn without_tokens(rows: usize, values: Vec<DynValue>) -> Self {
        Self { rows, values, has_tokens: false, lengths: vec![], spans: vec![], padded: rows }
    }
}

/// One row's tokens after the other, and where each row ends.
struct Tokens<'a> {
    ids: &'a [i32],
    offsets: &'a [i32],
}

impl<'a> Tokens<'a> {
    fn of(column: &'a ArrayRef) -> Option<Self> {
        let list = column.as_list_opt::<i32>()?;
        let ids = list.values().as_primitive_opt::<Int32Type>()?.values();
        Some(Self { ids, offsets: list.value_offsets() })
    }

    fn rows(&self) -> impl Iterator<Item = &'a [i32]> {
        let ids = self.ids;
        self.offsets.windows(2).map(move |pair| &ids[pair[0] as usize..pair[1] as usize])
    }

    /// `[rows, longest]` numbers, the rest of each row filled up.
    fn padded_with(&self, longest: usize, pad: i64, number: fn(i32) -> i64) -> Vec<i64> {
        let mut values = Vec::with_capacity(self.offsets.len() * longest);
        for row in self.rows() {
            let end = values.len() + longest;
            values.extend(row.iter().map(|id| number(*id)));
            values.resize(end, pad);
        }
        values
    }
}

fn of_tokens(
    pad_id: i64,
    tokens: &[TokenColumn],
    inputs: &[Input],
    columns: &[ArrayRef],
) -> Result<Run, String> {
    let lists: Option<Vec<_>> = columns.iter().map(Tokens::of).collect();
    let lists = lists.filter(|lists| lists.len() == tokens.len() && !lists.is_empty());
    let lists = lists.ok_or("expected columns of token lists")?;
    let lengths: Vec<usize> = lists[0].rows().map(<[i32]>::len).collect();
    // Programs may divide by the length, so an empty row is one padding token.
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
    let shape = [lengths.len(), longest];
    let values = inputs.iter().map(|input| {
        let at = tokens.iter().position(|column| column.argument() == input.name);
        let numbers = match at {
            Some(at) => lists[at].padded_with(longest, tokens[at].padding(pad_id), i64::from),
            None if input.name == "attention_mask" => lists[0].padded_with(longest, 0, |_| 1),
            // Token types of single texts.
            None => vec![0; lengths.len() * longest],
        };
        integers(input, &shape, numbers)
    });
    let values = values.collect::<Result<_, _>>()?;
    let all = |wanted: TokenColumn| {
        let at = tokens.iter().position(|column| *column == wanted);
        at.into_iter().flat_map(|at| lists[at].rows()).flatten().copied()
    };
    let spans = all(TokenColumn::Start).zip(all(TokenColumn::End)).collect();
    let padded = lengths.len() * longest;
    Ok(Run { rows: lengths.len(), values, has_tokens: true, lengths, spans, padded })
}

fn integers(input: &Input, shape: &[usize], numbers: Vec<i64>) -> Result<DynValue, String> {
    match input.element {
        TensorElementType::Int64 => value(shape, numbers),
        TensorElementType::Int32 => value(shape, numbers.into_iter().map(|n| n as i32).collect()),
        other => Err(format!("it takes '{}' as {other}, expected int64 or int32", input.name)),
    }
}

fn value<T>(shape: &[usize], values: Vec<T>) -> Result<DynValue, String>
where
    T: ort::value::PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static,
{
    let tensor = Tensor::from_array((shape, values)).map_err(|e| e.message().to_owned())?;
    Ok(tensor.into_dyn())
}

/// A column of numbers, texts or vectors in the shape that the program declares.
fn tensor(input: &Input, column: &ArrayRef) -> Result<DynValue, String> {
    let (items, per_row) = match column.as_fixed_size_list_opt() {
        Some(list) => {
            let length = list.value_length() as usize;
            // A slice of a list has all of its values.
            (list.values().slice(list.value_offset(0) as usize, list.len() * length), length)
        }
        None => (std::sync::Arc::clone(column), 1),
    };
    let shape = shape(input, column.len(), per_row)?;
    let floats = || items.as_primitive::<Float32Type>().values().iter().copied();
    match input.element {
        TensorElementType::Float32 => value(&shape, floats().collect()),
        TensorElementType::Float16 => value(&shape, floats().map(f16::from_f32).collect()),
        TensorElementType::Bfloat16 => value(&shape, floats().map(bf16::from_f32).collect()),
        TensorElementType::Float64 => {
            value(&shape, items.as_primitive::<Float64Type>().values().to_vec())
        }
        TensorElementType::Int32 => {
            value(&shape, items.as_primitive::<Int32Type>().values().to_vec())
        }
        TensorElementType::Int64 => {
            value(&shape, items.as_primitive::<Int64Type>().values().to_vec())
        }
        TensorElementType::Bool => value(&shape, items.as_boolean().values().iter().collect()),
        TensorElementType::String => {
            let texts = items.as_string::<i32>().iter();
            let texts = texts.map(|text| text.unwrap_or_default().to_owned()).collect::<Vec<_>>();
            let tensor = Tensor::from_string_array((shape.clone(), texts.as_slice()));
            Ok(tensor.map_err(|e| e.message().to_owned())?.into_dyn())
        }
        other => Err(format!("it takes '{}' as {other}, which no column is", input.name)),
    }
}

/// Rows, and behind them what the program declares; a size that it leaves open is what remains.
fn shape(input: &Input, rows: usize, per_row: usize) -> Result<Vec<usize>, String> {
    let known: usize = input.rest.iter().filter_map(|size| usize::try_from(*size).ok()).product();
    let mut open = per_row.checked_div(known).unwrap_or(0);
    let sizes = input.rest.iter().map(|size| match usize::try_from(*size) {
        Ok(size) => size,
        Err(_) => std::mem::replace(&mut open, 1),
    });
    let shape: Vec<usize> = [rows].into_iter().chain(sizes).collect();
    if shape.iter().product::<usize>() == rows * per_row {
        Ok(shape)
    } else {
        Err(format!("'{}' of {per_row} values does not fit {:?}", input.name, input.rest))
    }
}

/// Bytes of images, normalized and arranged.
fn pixels(
    input: &Input,
    columns: &[ArrayRef],
    crop: u32,
    layout: Layout,
    [mean, std]: [&[Number; 3]; 2],
) -> Result<DynValue, String> {
    let list = columns.first().and_then(|column| column.as_fixed_size_list_opt());
    let list = list.ok_or("expected one column of pixels")?;
    let (rows, side, length) = (list.len(), crop as usize, list.value_length() as usize);
    let items = list.values().slice(list.value_offset(0) as usize, rows * length);
    let bytes = items.as_primitive_opt::<UInt8Type>().ok_or("expected bytes of pixels")?.values();
    let scaled = |byte: u8, channel: usize| {
        (f32::from(byte) / 255.0 - mean[channel].0 as f32) / std[channel].0 as f32
    };
    let mut values = Vec::with_capacity(bytes.len());
    for image in bytes.chunks_exact(length.max(1)) {
        match layout {
            Layout::Hwc => {
                values.extend(image.iter().enumerate().map(|(at, byte)| scaled(*byte, at % 3)));
            }
            Layout::Chw => {
                for channel in 0..3 {
                    let of_it = image.iter().skip(channel).step_by(3);
                    values.extend(of_it.map(|byte| scaled(*byte, channel)));
                }
            }
        }
    }
    let shape = match layout {
        Layout::Chw => [rows, 3, side, side],
        Layout::Hwc => [rows, side, side, 3],
    };
    match input.element {
        TensorElementType::Float32 => value(&shape, values),
        TensorElementType::Float16 => {
            value(&shape, values.into_iter().map(f16::from_f32).collect())
        }
        other => Err(format!("it takes '{}' as {other}, expected float", input.name)),
    }
}
