//! Arrow ⇄ tensors, without a copy where the layouts agree.

use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, ArrowPrimitiveType, AsArray, BooleanArray, FixedSizeListArray,
    make_array,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{
    DataType, FieldRef, Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type,
};
use tch::{Kind, TchError, Tensor};

use crate::model::type_name;

/// One row's tokens after the other (their ids, or another number of each), and how long the
/// longest row is.
pub(super) struct Tokens<'a> {
    ids: &'a [i32],
    offsets: &'a [i32],
    longest: usize,
}

impl<'a> Tokens<'a> {
    /// The token lists of a prepared column; `None` if it is not one.
    pub(super) fn of(column: &'a ArrayRef) -> Option<Self> {
        let list = column.as_list_opt::<i32>()?;
        let ids = list.values().as_primitive_opt::<Int32Type>()?.values();
        let offsets: &[i32] = list.value_offsets();
        // Programs may divide by the length, so an empty row is one padding token.
        let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize);
        Some(Self { ids, offsets, longest: lengths.max().unwrap_or(0).max(1) })
    }

    /// Pads the longest row, too: up to a multiple, unless that is longer than the program takes.
    pub(super) fn round_up(&mut self, multiple: usize, longest_max: usize) {
        let rounded = self.longest.next_multiple_of(multiple.max(1));
        if rounded <= longest_max {
            self.longest = rounded;
        }
    }

    /// Whether no row is padded.
    pub(super) fn is_even(&self) -> bool {
        self.offsets.windows(2).all(|pair| (pair[1] - pair[0]) as usize == self.longest)
    }

    pub(super) fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Size of the batch when every row is as long as the longest.
    pub(super) fn padded(&self) -> usize {
        self.rows() * self.longest
    }

    fn row(&self, row: usize) -> &'a [i32] {
        &self.ids[self.offsets[row] as usize..self.offsets[row + 1] as usize]
    }

    /// `[rows, longest]` numbers, the rest of each row filled with `pad`.
    pub(super) fn padded_with(&self, pad: i64) -> Result<Tensor, TchError> {
        self.filled(|row, target| {
            let (tokens, padding) = target.split_at_mut(row.len());
            for (to, from) in tokens.iter_mut().zip(row) {
                *to = i64::from(*from);
            }
            padding.fill(pad);
        })
    }

    /// `[rows, longest]`: 1 for a token, 0 for padding.
    pub(super) fn mask(&self) -> Result<Tensor, TchError> {
        self.filled(|row, target| {
            let (tokens, padding) = target.split_at_mut(row.len());
            tokens.fill(1);
            padding.fill(0);
        })
    }

    /// `[rows, longest]` zeros.
    pub(super) fn zeros(&self) -> Result<Tensor, TchError> {
        self.filled(|_, target| target.fill(0))
    }

    /// A tensor whose every row is written by `fill`.
    fn filled(&self, fill: impl Fn(&[i32], &mut [i64])) -> Result<Tensor, TchError> {
        let shape = [self.rows() as i64, self.longest as i64];
        let tensor = Tensor::f_empty(shape, (Kind::Int64, tch::Device::Cpu))?;
        let start = tensor.data_ptr().cast::<i64>();
        // SAFETY: a contiguous new tensor of `padded` int64, which nothing else refers to yet.
        // Every element is written below before anyone reads it.
        let elements = unsafe { slice::from_raw_parts_mut(start, self.padded()) };
        for (row, target) in elements.chunks_exact_mut(self.longest).enumerate() {
            fill(self.row(row), target);
        }
        Ok(tensor)
    }
}

/// A CPU tensor over a column's own memory: `[rows]` for numbers, `[rows, n]` for vectors.
/// Booleans, which Arrow keeps as bits, are copied.
///
/// # Safety
/// The tensor and its views must not outlive `column`, and must not be written to.
pub(super) unsafe fn borrow_column(column: &ArrayRef) -> Result<Tensor, TchError> {
    let rows = column.len() as i64;
    let (items, shape): (&ArrayRef, Vec<i64>) = match column.as_fixed_size_list_opt() {
        Some(list) => (list.values(), vec![rows, i64::from(list.value_length())]),
        None => (column, vec![rows]),
    };
    let (data, kind) = match items.data_type() {
        DataType::Boolean => {
            let bits: Vec<bool> = items.as_boolean().values().iter().collect();
            return Tensor::f_from_slice(&bits)?.f_reshape(&shape);
        }
        DataType::UInt8 => (first_byte::<UInt8Type>(items), Kind::Uint8),
        DataType::Int32 => (first_byte::<Int32Type>(items), Kind::Int),
        DataType::Int64 => (first_byte::<Int64Type>(items), Kind::Int64),
        DataType::Float32 => (first_byte::<Float32Type>(items), Kind::Float),
        DataType::Float64 => (first_byte::<Float64Type>(items), Kind::Double),
        other => return Err(TchError::Kind(format!("{} has no tensor form", type_name(other)))),
    };
    let mut strides = vec![1; shape.len()];
    if let [_, length] = shape[..] {
        strides[0] = length;
    }
    // SAFETY: `data` holds as many elements of `kind` as `shape` says; the caller keeps `column`.
    unsafe { Tensor::f_from_blob(data, &shape, &strides, kind, tch::Device::Cpu) }
}

fn first_byte<T: ArrowPrimitiveType>(items: &ArrayRef) -> *const u8 {
    items.as_primitive::<T>().values().inner().as_ptr()
}

/// Why a program's result is not what the package declares.
pub(super) enum Mismatch {
    /// What was declared, and what came back.
    Shape { expected: String, found: String },
    /// libtorch's message.
    Torch(TchError),
}

impl From<TchError> for Mismatch {
    fn from(error: TchError) -> Self {
        Self::Torch(error)
    }
}

/// A program's result as a column of the declared type, over the tensor's own memory.
/// `inputs` are those that the program got: a result that is one of them is copied.
pub(super) fn to_column(
    output: Tensor,
    field: &FieldRef,
    rows: usize,
    inputs: &[Tensor],
) -> Result<ArrayRef, Mismatch> {
    let mismatch = |found: String| Mismatch::Shape {
        expected: format!("{} for {rows} rows", type_name(field.data_type())),
        found,
    };
    let (item, length) = match field.data_type() {
        DataType::FixedSizeList(item, length) => (item.data_type(), Some(*length)),
        scalar => (scalar, None),
    };
    let shape = output.size();
    let rows = rows as i64;
    let fits = match length {
        Some(length) => shape == [rows, i64::from(length)],
        None => shape == [rows] || shape == [rows, 1],
    };
    let kind = output.f_kind()?;
    let Some(wanted) = fits.then(|| kind_for(item, kind)).flatten() else {
        return Err(mismatch(format!("{} {shape:?}", kind_name(kind))));
    };
    let on_cpu = (wanted, tch::Device::Cpu);
    let mut output = output.f_to_dtype_layout(on_cpu, false, false)?.f_contiguous()?;
    if inputs.iter().any(|input| overlaps(input, &output)) {
        output = output.f_to_dtype_layout(on_cpu, false, true)?;
    }
    let array = match (item, length) {
        (DataType::Boolean, _) => boolean_column(&output),
        (_, None) => primitive_column(output, item.clone(), rows as usize),
        (_, Some(length)) => {
            let items = primitive_column(output, item.clone(), rows as usize * length as usize);
            let DataType::FixedSizeList(item_field, _) = field.data_type() else {
                return Err(mismatch("a vector".to_owned()));
            };
            Arc::new(FixedSizeListArray::new(Arc::clone(item_field), length, items, None))
        }
    };
    Ok(array)
}

/// The kind that a result must be converted to, if that loses nothing but floating point digits.
fn kind_for(item: &DataType, found: Kind) -> Option<Kind> {
    let is_float = matches!(found, Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double);
    match item {
        DataType::Float32 if is_float => Some(Kind::Float),
        DataType::Float64 if is_float => Some(Kind::Double),
        DataType::Int32 if matches!(found, Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int) => {
            Some(Kind::Int)
        }
        DataType::Int64
            if matches!(
                found,
                Kind::Uint8 | Kind::Int8 | Kind::Int16 | Kind::Int | Kind::Int64
            ) =>
        {
            Some(Kind::Int64)
        }
        DataType::Boolean if found == Kind::Bool => Some(Kind::Bool),
        _ => None,
    }
}

/// PyTorch's names, since the author of the program reads them.
fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Int => "int32".to_owned(),
        Kind::Half => "float16".to_owned(),
        Kind::Float => "float32".to_owned(),
        Kind::Double => "float64".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Whether two CPU tensors share memory. Both contiguous.
fn overlaps(input: &Tensor, output: &Tensor) -> bool {
    if input.device() != tch::Device::Cpu {
        return false;
    }
    let range = |tensor: &Tensor| {
        let start = tensor.data_ptr() as usize;
        (start, start + tensor.numel() * tensor.kind().elt_size_in_bytes())
    };
    let ((a_start, a_end), (b_start, b_end)) = (range(input), range(output));
    a_start < b_end && b_start < a_end
}

/// Keeps a result's memory alive for the Arrow buffer over it.
struct TensorMemory {
    _tensor: Tensor,
}

// SAFETY: libtorch counts references atomically, and nobody reaches the tensor through this: it is
// only dropped, by whichever thread is the last.
unsafe impl Sync for TensorMemory {}
impl std::panic::RefUnwindSafe for TensorMemory {}

fn primitive_column(output: Tensor, item: DataType, count: usize) -> ArrayRef {
    let bytes = output.numel() * output.kind().elt_size_in_bytes();
    let buffer = match NonNull::new(output.data_ptr().cast::<u8>()) {
        // SAFETY: a contiguous CPU tensor of `bytes` bytes at this address, which its owner keeps
        // in place and nobody writes to any more: the program has returned.
        Some(start) => unsafe {
            Buffer::from_custom_allocation(start, bytes, Arc::new(TensorMemory { _tensor: output }))
        },
        None => Buffer::default(),
    };
    let data = ArrayData::builder(item).len(count).add_buffer(buffer);
    // SAFETY: numbers only, every bit pattern of which is valid, and `to_column` has checked kind
    // and shape against the declared type. libtorch aligns its memory.
    make_array(unsafe { data.build_unchecked() })
}

fn boolean_column(output: &Tensor) -> ArrayRef {
    let start = output.data_ptr().cast::<u8>();
    // SAFETY: a contiguous CPU tensor of bytes.
    let bytes = unsafe { slice::from_raw_parts(start, output.numel()) };
    Arc::new(bytes.iter().map(|byte| Some(*byte != 0)).collect::<BooleanArray>())
}
