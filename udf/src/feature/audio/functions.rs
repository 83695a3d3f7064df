//! `audio_decode(bytes [, sample_rate])`: a file as samples.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Builder, ListArray, StructArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::super::arguments::{BytesColumn, OnBadValue, is_bytes, whole_number};
use super::decode::{Audio, decode};
use super::limits::{BATCH_SAMPLES_MAX, check_rate};
use super::resample::resample;
use crate::feature::docs::documentation;

const NAME: &str = "audio_decode";
const USAGE: &str = "audio_decode(bytes [, sample_rate])";

/// `audio_decode` and `try_audio_decode`.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value: OnBadValue| {
        Arc::new(ScalarUDF::from(AudioDecode {
            on_bad_value,
            name: on_bad_value.name_of(NAME),
            signature: Signature::user_defined(Volatility::Immutable),
        }))
    };
    [OnBadValue::Fail, OnBadValue::Null].map(under).into()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AudioDecode {
    on_bad_value: OnBadValue,
    name: String,
    signature: Signature,
}

fn item() -> Arc<Field> {
    Arc::new(Field::new_list_field(DataType::Float32, true))
}

fn fields() -> Fields {
    Fields::from(vec![
        Field::new("samples", DataType::List(item()), true),
        Field::new("sample_rate", DataType::Int32, true),
        Field::new("channels", DataType::Int32, true),
    ])
}

impl ScalarUDFImpl for AudioDecode {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let bytes = |found: &DataType| match found {
            DataType::Null => Some(DataType::Binary),
            other => is_bytes(other).then(|| other.clone()),
        };
        let is_number = |found: &DataType| found.is_integer() || found.is_null();
        match found {
            [first] => bytes(first).map(|first| vec![first]),
            [first, rate] if is_number(rate) => {
                bytes(first).map(|first| vec![first, DataType::Int64])
            }
            _ => None,
        }
        .map_or_else(
            || {
                let found: Vec<String> = found.iter().map(ToString::to_string).collect();
                plan_err!(
                    "{} got ({}), expected {USAGE} with BINARY, the bytes of an audio file, and a \
                     whole number",
                    self.name,
                    found.join(", ")
                )
            },
            Ok,
        )
    }

    fn return_type(&self, _found: &[DataType]) -> Result<DataType> {
        Ok(DataType::Struct(fields()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> =
            args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let column = self.decode(&columns, rows)?;
        if is_constant {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&column, 0)?))
        } else {
            Ok(ColumnarValue::Array(column))
        }
    }
}

impl AudioDecode {
    fn decode(&self, columns: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let (Some(bytes), rates) = (columns.first().and_then(BytesColumn::of), columns.get(1))
        else {
            return internal_err!("{} received no BINARY after coercion", self.name);
        };
        let mut decoded = Columns::default();
        for row in 0..rows {
            let rate = rates.map(|rates| whole_number(rates, row)).transpose()?;
            let audio = match (bytes.get(row), rate) {
                (_, Some(None)) | (None, _) => None,
                (Some(bytes), rate) => {
                    self.on_bad_value.apply(NAME, audio_of(bytes, rate.flatten()))?
                }
            };
            decoded.append(audio)?;
        }
        decoded.finish()
    }
}

fn audio_of(bytes: &[u8], rate: Option<i64>) -> std::result::Result<Audio, String> {
    let rate = rate.map(check_rate).transpose()?;
    let audio = decode(bytes)?;
    let Some(rate) = rate else { return Ok(audio) };
    catch_unwind(AssertUnwindSafe(|| resample(audio, rate)))
        .unwrap_or_else(|_| Err("the resampler gave up".to_owned()))
}

/// Refuses a batch before memory is taken for more of it.
fn check_batch(samples: usize) -> Result<()> {
    if samples <= BATCH_SAMPLES_MAX {
        Ok(())
    } else {
        exec_err!(
            "{NAME}: the audio of one batch has more than the {BATCH_SAMPLES_MAX} samples that are \
             allowed; SET datafusion.execution.batch_size to fewer rows"
        )
    }
}

/// The struct's columns.
#[derive(Default)]
struct Columns {
    samples: Vec<f32>,
    lengths: Vec<usize>,
    sample_rate: Int32Builder,
    channels: Int32Builder,
    is_valid: Vec<bool>,
}

impl Columns {
    fn append(&mut self, audio: Option<Audio>) -> Result<()> {
        let length = audio.as_ref().map_or(0, |audio| audio.samples.len());
        check_batch(self.samples.len() + length)?;
        self.is_valid.push(audio.is_some());
        self.lengths.push(length);
        let number = |number: Option<usize>| number.and_then(|number| i32::try_from(number).ok());
        self.sample_rate.append_option(number(audio.as_ref().map(|a| a.sample_rate as usize)));
        self.channels.append_option(number(audio.as_ref().map(|audio| audio.channels)));
        self.samples.extend(audio.into_iter().flat_map(|audio| audio.samples));
        Ok(())
    }

    fn finish(mut self) -> Result<ArrayRef> {
        let nulls = Some(NullBuffer::from(self.is_valid));
        let values = Arc::new(Float32Array::from(self.samples));
        let offsets = OffsetBuffer::from_lengths(self.lengths);
        let samples = ListArray::try_new(item(), offsets, values, nulls.clone())?;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(samples),
            Arc::new(self.sample_rate.finish()),
            Arc::new(self.channels.finish()),
        ];
        Ok(Arc::new(StructArray::try_new(fields(), columns, nulls)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_a_limit_of_its_own() {
        check_batch(BATCH_SAMPLES_MAX).unwrap();
        let problem = check_batch(BATCH_SAMPLES_MAX + 1).unwrap_err().to_string();
        assert!(problem.contains("more than the 268435456 samples"), "{problem}");
        assert!(problem.contains("SET datafusion.execution.batch_size"), "{problem}");
    }
}
