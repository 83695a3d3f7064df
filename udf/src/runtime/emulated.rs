//! A stand-in for an accelerator: holds the calling thread for a fixed time per batch, uses no
//! CPU, and returns a digest of its inputs.
//!
//! The digest of a row depends on that row's prepared inputs and the output's position and name,
//! and on nothing else: neither on the batch around it nor on padding. So results show whether
//! rows were mixed up, lost or computed from other inputs.

mod curve;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, Float32Array, Float64Array,
    Int32Array, Int64Array, StringArray, UInt8Array,
};
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, FieldRef, Float32Type, Float64Type, Int32Type, Int64Type,
    ToByteSlice,
};
use arrow::error::ArrowError;

use self::curve::Times;
use super::replica::{Device, Prepared, Replica, Usage};
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, RuntimeKind, Signature, TransformKind, type_name};

/// An emulated model on an emulated accelerator.
#[derive(Debug)]
struct EmulatedReplica {
    model: String,
    signature: Signature,
    times: Times,
    fail_on: Option<String>,
    memory_rows: usize,
    /// What lengths are rounded up to; 1 for rows without any.
    length_multiple: usize,
    device: Device,
    /// Batches until the device is lost.
    left: Option<AtomicU32>,
}

pub(super) fn load(
    model: &ModelDeclaration,
    device: Device,
) -> Result<Arc<dyn Replica>, RuntimeError> {
    let Device::Emulated(ordinal) = device else {
        return Err(RuntimeError::Device {
            device: device.to_string(),
            problem: format!("model '{}' is emulated and runs on 'emulated' only", model.name),
        });
    };
    let RuntimeKind::Emulated { service_ms, fail_on, memory_rows, curve, loses } = &model.runtime
    else {
        return Err(RuntimeError::Load {
            model: model.name.clone(),
            file: "model.toml".to_owned(),
            problem: format!("its runtime is '{}', not emulated", model.runtime.name()),
        });
    };
    Ok(Arc::new(EmulatedReplica {
        model: model.name.clone(),
        signature: model.signature.clone(),
        times: Times::new(Duration::from_millis(*service_ms), curve.clone()),
        fail_on: fail_on.clone(),
        memory_rows: memory_rows.map_or(usize::MAX, |rows| rows as usize),
        length_multiple: match model.transform {
            TransformKind::Tokenize { .. } => super::length_multiple(model, device) as usize,
            TransformKind::Tensor | TransformKind::Image { .. } => 1,
        },
        device,
        left: loses.filter(|loses| loses.device == ordinal).map(|l| AtomicU32::new(l.after)),
    }))
}

impl EmulatedReplica {
    fn failed(&self, rows: usize, problem: String) -> RuntimeError {
        RuntimeError::Program { model: self.model.clone(), rows, problem }
    }

    /// Counts a batch.
    fn check_device(&self) -> Result<(), RuntimeError> {
        let Some(left) = &self.left else { return Ok(()) };
        let counted = left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        counted.map(|_| ()).map_err(|_| RuntimeError::DeviceLost {
            device: self.device.to_string(),
            problem: "the emulated device failed for good".to_owned(),
            by_others: false,
        })
    }
}

/// What an emulated batch is.
struct Digests {
    /// One per row.
    rows: Vec<u64>,
    /// Whether it holds a row that the model fails on.
    fails: bool,
}

impl Replica for EmulatedReplica {
    fn prepare(&self, columns: &[ArrayRef]) -> Result<Prepared, RuntimeError> {
        let rows = columns.first().map_or(0, |column| column.len());
        let mut digests = vec![FNV_START; rows];
        for column in columns {
            digest_column(column, &mut digests).map_err(|problem| self.failed(rows, problem))?;
        }
        let longest = columns.iter().filter_map(longest_list).max();
        let fails = match (&self.fail_on, columns.first()) {
            (Some(value), Some(column)) => {
                holds(column, value).map_err(|e| self.failed(rows, e.to_string()))?
            }
            _ => false,
        };
        Ok(Prepared {
            rows,
            padded: rows * longest.unwrap_or(1).max(1).next_multiple_of(self.length_multiple),
            inputs: Box::new(Digests { rows: digests, fails }),
        })
    }

    fn forward(&self, batch: Prepared) -> Result<Vec<ArrayRef>, RuntimeError> {
        let (rows, padded) = (batch.rows, batch.padded);
        let Ok(batch) = batch.inputs.downcast::<Digests>() else {
            let problem = "the batch was prepared by another replica".to_owned();
            return Err(self.failed(rows, problem));
        };
        self.check_device()?;
        if rows > self.memory_rows {
            let problem = format!("the emulated memory holds {} rows", self.memory_rows);
            return Err(RuntimeError::OutOfMemory { model: self.model.clone(), rows, problem });
        }
        self.times.check(padded).map_err(|problem| {
            let model = self.model.clone();
            RuntimeError::OutOfMemory { model, rows, problem }
        })?;
        // Stands for a blocking call to a device, which holds its thread just so.
        thread::sleep(self.times.of(padded));
        if let Some(value) = self.fail_on.as_ref().filter(|_| batch.fails) {
            return Err(self.failed(rows, format!("this emulated model fails on '{value}'")));
        }
        let outputs = self.signature.outputs.iter().enumerate();
        let columns = outputs.map(|(i, field)| output_column(&batch.rows, i, field));
        columns.collect::<Result<_, String>>().map_err(|problem| self.failed(rows, problem))
    }

    fn usage(&self, _rows: usize, padded: usize) -> Usage {
        self.times.usage(padded)
    }
}

fn longest_list(column: &ArrayRef) -> Option<usize> {
    let offsets = column.as_list_opt::<i32>()?.value_offsets();
    offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).max()
}

/// Whether a row of the column, as text, is this.
fn holds(column: &ArrayRef, value: &str) -> Result<bool, ArrowError> {
    let texts = cast(column, &DataType::Utf8)?;
    Ok(texts.as_string::<i32>().iter().any(|text| text == Some(value)))
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a, which depends neither on the process nor on the version of Rust.
fn fnv(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(FNV_PRIME))
}

/// Spreads a digest over all 64 bits (the finalizer of SplitMix64), differently for each `index`.
fn mixed(digest: u64, index: u64) -> u64 {
    let mut z = digest.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

type RowItems<'a> = &'a dyn Fn(usize) -> Range<usize>;

fn digest_column(column: &ArrayRef, digests: &mut [u64]) -> Result<(), String> {
    if let Some(list) = column.as_list_opt::<i32>() {
        let offsets = list.value_offsets();
        let row_items = |row: usize| offsets[row] as usize..offsets[row + 1] as usize;
        return digest_values(list.values(), &row_items, digests);
    }
    if let Some(list) = column.as_fixed_size_list_opt() {
        let length = list.value_length() as usize;
        return digest_values(list.values(), &|row| row * length..(row + 1) * length, digests);
    }
    digest_values(column, &|row| row..row + 1, digests)
}

fn digest_values(
    items: &ArrayRef,
    row_items: RowItems<'_>,
    digests: &mut [u64],
) -> Result<(), String> {
    match items.data_type() {
        DataType::UInt8 => digest_pixels(items.as_primitive(), row_items, digests),
        DataType::Int32 => digest_items::<Int32Type>(items, row_items, digests),
        DataType::Int64 => digest_items::<Int64Type>(items, row_items, digests),
        DataType::Float32 => digest_items::<Float32Type>(items, row_items, digests),
        DataType::Float64 => digest_items::<Float64Type>(items, row_items, digests),
        DataType::Utf8 => {
            let texts = items.as_string::<i32>();
            digest_bytes(digests, row_items, |item| texts.value(item).as_bytes());
        }
        DataType::Binary => {
            let texts = items.as_binary::<i32>();
            digest_bytes(digests, row_items, |item| texts.value(item));
        }
        DataType::Boolean => {
            let values = items.as_boolean();
            digest_bytes(digests, row_items, |item| if values.value(item) { &[1] } else { &[0] });
        }
        other => return Err(format!("an emulated model cannot take {}", type_name(other))),
    }
    Ok(())
}

fn digest_bytes<'a>(
    digests: &mut [u64],
    row_items: RowItems<'_>,
    bytes: impl Fn(usize) -> &'a [u8],
) {
    for (row, digest) in digests.iter_mut().enumerate() {
        for item in row_items(row) {
            *digest = fnv(*digest, &(bytes(item).len() as u64).to_le_bytes());
            *digest = fnv(*digest, bytes(item));
        }
    }
}

fn digest_items<T: ArrowPrimitiveType>(
    items: &ArrayRef,
    row_items: RowItems<'_>,
    digests: &mut [u64],
) {
    let values = items.as_primitive::<T>().values();
    for (row, digest) in digests.iter_mut().enumerate() {
        let row_values = &values[row_items(row)];
        // The length keeps columns apart: [1, 2], [3] differs from [1], [2, 3].
        *digest = fnv(*digest, &(row_values.len() as u64).to_le_bytes());
        *digest = fnv(*digest, row_values.to_byte_slice());
    }
}

/// Of eight bytes at a time: a model that stands for one of images must not take longer to look at
/// them than they took to decode.
fn digest_pixels(items: &UInt8Array, row_items: RowItems<'_>, digests: &mut [u64]) {
    for (row, digest) in digests.iter_mut().enumerate() {
        let pixels = &items.values()[row_items(row)];
        let (words, rest) = pixels.as_chunks::<8>();
        *digest = fnv(*digest, &(pixels.len() as u64).to_le_bytes());
        for word in words {
            let word = u64::from_le_bytes(*word);
            *digest = (*digest ^ word).wrapping_mul(FNV_PRIME).rotate_left(29);
        }
        *digest = fnv(*digest, rest);
    }
}

/// Numbers from 0 (inclusive) to 1, whole numbers of any size, text of 16 hexadecimal digits.
fn output_column(digests: &[u64], output: usize, field: &FieldRef) -> Result<ArrayRef, String> {
    let seeds =
        digests.iter().map(|digest| fnv(mixed(*digest, output as u64), field.name().as_bytes()));
    let (item, length) = match field.data_type() {
        DataType::FixedSizeList(item, length) => (item.data_type(), *length as u64),
        scalar => (scalar, 1),
    };
    let values = seeds.flat_map(|seed| (0..length).map(move |i| mixed(seed, i)));
    // 24 and 53 bits: what the mantissas hold exactly.
    let items: ArrayRef = match item {
        DataType::Float32 => {
            let value = |bits: u64| (bits >> 40) as f32 / (1u64 << 24) as f32;
            Arc::new(Float32Array::from_iter_values(values.map(value)))
        }
        DataType::Float64 => {
            let value = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
            Arc::new(Float64Array::from_iter_values(values.map(value)))
        }
        DataType::Int32 => Arc::new(Int32Array::from_iter_values(values.map(|bits| bits as i32))),
        DataType::Int64 => Arc::new(Int64Array::from_iter_values(values.map(|bits| bits as i64))),
        DataType::Boolean => {
            Arc::new(values.map(|bits| Some(bits & 1 == 1)).collect::<BooleanArray>())
        }
        DataType::Utf8 => {
            Arc::new(values.map(|bits| Some(format!("{bits:016x}"))).collect::<StringArray>())
        }
        other => return Err(format!("an emulated model cannot give {}", type_name(other))),
    };
    Ok(match field.data_type() {
        DataType::FixedSizeList(item, length) => {
            Arc::new(FixedSizeListArray::new(Arc::clone(item), *length, items, None))
        }
        _ => items,
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::ListArray;
    use arrow::datatypes::Field;

    use super::*;
    use crate::fixture::{Folder, open, tensors};

    fn load_on(device: Device, output: &str) -> Result<Arc<dyn Replica>, RuntimeError> {
        let runtime = "kind = \"emulated\"\nservice_ms = 20";
        let columns = [("a", "STRING"), ("b", "FLOAT[2]")];
        let folder = Folder::new(&tensors(&columns, &[("o", output)], runtime), &[]);
        let (model, package) = open(folder.path());
        super::super::load(&model, &package, device)
    }

    fn run(replica: &dyn Replica, columns: &[ArrayRef]) -> ArrayRef {
        let batch = replica.prepare(columns).unwrap();
        Arc::clone(&replica.forward(batch).unwrap()[0])
    }

    fn columns() -> [ArrayRef; 2] {
        let vectors = [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]].map(|v| Some(v.map(Some).to_vec()));
        [
            Arc::new(StringArray::from(vec!["x", "", "x"])),
            Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors, 2)),
        ]
    }

    #[test]
    fn a_row_gives_the_same_in_every_batch_and_rows_differ() {
        for output in
            ["STRING", "DOUBLE", "FLOAT", "BIGINT", "INT", "BOOLEAN", "FLOAT[4]", "INT[2]"]
        {
            let replica = load_on(Device::Emulated(0), output).unwrap();
            let all = run(&*replica, &columns());
            assert_eq!(type_name(all.data_type()), output);
            for row in 0..3 {
                let alone = run(&*replica, &columns().map(|column| column.slice(row, 1)));
                assert_eq!(alone.to_data(), all.slice(row, 1).to_data(), "{output}");
            }
            assert_eq!(all.slice(0, 1).to_data(), all.slice(2, 1).to_data());
            if output != "BOOLEAN" {
                assert_ne!(all.slice(0, 1).to_data(), all.slice(1, 1).to_data());
            }
        }
    }

    #[test]
    fn digests_are_the_same_on_every_machine() {
        let replica = load_on(Device::Emulated(0), "STRING").unwrap();
        let digests = run(&*replica, &columns());
        assert_eq!(digests.as_string::<i32>().value(1), "4c6b2fc188b4aa2b");
    }

    #[test]
    fn every_pixel_counts() {
        let replica = load_on(Device::Emulated(0), "STRING").unwrap();
        let digest = |pixels: &[u8]| {
            let values: ArrayRef = Arc::new(UInt8Array::from_iter_values(pixels.iter().copied()));
            let item = Arc::new(Field::new_list_field(DataType::UInt8, false));
            let image = FixedSizeListArray::new(item, pixels.len() as i32, values, None);
            run(&*replica, &[Arc::new(image)]).as_string::<i32>().value(0).to_owned()
        };
        let image: Vec<u8> = (0..20).collect();
        assert_eq!(digest(&image), digest(&image));
        for at in 0..image.len() {
            let mut other = image.clone();
            other[at] ^= 0x80;
            assert_ne!(digest(&other), digest(&image), "{at}");
        }
    }

    #[test]
    fn token_lists_count_as_padded() {
        let replica = load_on(Device::Emulated(0), "STRING").unwrap();
        let rows = [Some(vec![Some(1), Some(2), Some(3)]), Some(vec![Some(1)])];
        let tokens: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows));
        assert_eq!(replica.prepare(&[tokens]).unwrap().padded, 6);
    }

    #[test]
    fn a_batch_takes_its_service_time() {
        let replica = load_on(Device::Emulated(0), "FLOAT").unwrap();
        let start = std::time::Instant::now();
        run(&*replica, &columns());
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn it_runs_on_emulated_accelerators_only() {
        for device in [Device::Cpu, Device::Cuda(0)] {
            let error = load_on(device, "FLOAT").unwrap_err();
            assert!(matches!(error, RuntimeError::Device { .. }), "{error}");
        }
    }
}
