//! Rows as CSV, TSV or JSON, written as they come. A query that fails midway leaves rows behind;
//! the error on stderr and the exit status say so, and the JSON array stays open.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::csv;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::json::writer::{
    ArrayWriter, JsonArray, LineDelimited, LineDelimitedWriter, WriterBuilder,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::Result;
use datafusion_cli::print_format::PrintFormat;
use forebay_engine::weight;

/// Bytes of rows that become text at once.
const PART_BYTES_MAX: usize = 1 << 20;

/// Writes batches in one of the row formats.
pub(super) enum RowWriter<W: Write> {
    Csv(Box<csv::Writer<W>>),
    Json(ArrayWriter<W>),
    Ndjson(LineDelimitedWriter<W>),
}

impl<W: Write> RowWriter<W> {
    /// `None` if the format is for tables.
    pub(super) fn new(format: PrintFormat, out: W) -> Option<Self> {
        let csv = |separator, out| {
            Self::Csv(Box::new(csv::WriterBuilder::new().with_delimiter(separator).build(out)))
        };
        Some(match format {
            PrintFormat::Csv => csv(b',', out),
            PrintFormat::Tsv => csv(b'\t', out),
            PrintFormat::Json => Self::Json(nulls_too().build::<_, JsonArray>(out)),
            PrintFormat::NdJson => Self::Ndjson(nulls_too().build::<_, LineDelimited>(out)),
            PrintFormat::Table | PrintFormat::Automatic => return None,
        })
    }

    /// Writes a few rows at a time: as text they may be many times larger.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let bytes_per_row = weight::bytes(batch) / batch.num_rows().max(1);
        let rows_max = (PART_BYTES_MAX / bytes_per_row.max(1)).max(1);
        // The header, even without rows.
        for first in (0..batch.num_rows().max(1)).step_by(rows_max) {
            let rows = rows_max.min(batch.num_rows() - first);
            self.write_part(&batch.slice(first, rows))?;
        }
        Ok(())
    }

    fn write_part(&mut self, batch: &RecordBatch) -> Result<()> {
        match self {
            // CSV cannot say how many rows without columns there are.
            Self::Csv(_) if batch.num_columns() == 0 => {}
            Self::Csv(writer) => writer.write(&without_nesting(batch)?)?,
            Self::Json(writer) => writer.write(batch)?,
            Self::Ndjson(writer) => writer.write(batch)?,
        }
        Ok(())
    }

    /// Ends the output, once all rows are there.
    pub(super) fn finish(self) -> Result<()> {
        let mut out = match self {
            Self::Csv(writer) => writer.into_inner(),
            Self::Json(mut writer) => {
                writer.finish()?;
                let mut out = writer.into_inner();
                out.write_all(b"\n")?;
                out
            }
            Self::Ndjson(mut writer) => {
                writer.finish()?;
                writer.into_inner()
            }
        };
        out.flush()?;
        Ok(())
    }
}

/// All rows have all columns.
fn nulls_too() -> WriterBuilder {
    WriterBuilder::new().with_explicit_nulls(true)
}

/// CSV knows no lists: embeddings become text, as in tables.
fn without_nesting(batch: &RecordBatch) -> Result<RecordBatch> {
    if !batch.columns().iter().any(|column| column.data_type().is_nested()) {
        return Ok(batch.clone());
    }
    let mut fields = vec![];
    let mut columns = vec![];
    for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
        let nested = column.data_type().is_nested();
        columns.push(if nested { as_text(column)? } else { Arc::clone(column) });
        fields.push(if nested {
            Arc::new(Field::new(field.name(), DataType::Utf8, true))
        } else {
            Arc::clone(field)
        });
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn as_text(column: &ArrayRef) -> Result<ArrayRef> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options)?;
    let text = |row| column.is_valid(row).then(|| formatter.value(row).to_string());
    Ok(Arc::new((0..column.len()).map(text).collect::<StringArray>()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, ListArray};
    use arrow::datatypes::Int32Type;

    use super::*;

    fn written(format: PrintFormat, batches: &[RecordBatch]) -> String {
        let mut out = vec![];
        let mut writer = RowWriter::new(format, &mut out).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
        }
        writer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    fn batch(ids: &[i64]) -> RecordBatch {
        let ids: ArrayRef = Arc::new(Int64Array::from(ids.to_vec()));
        RecordBatch::try_from_iter([("id", ids)]).unwrap()
    }

    #[test]
    fn several_batches_are_one_document() {
        let batches = [batch(&[1]), batch(&[]), batch(&[2])];
        assert_eq!(written(PrintFormat::Csv, &batches), "id\n1\n2\n");
        assert_eq!(written(PrintFormat::Json, &batches), "[{\"id\":1},{\"id\":2}]\n");
        assert_eq!(written(PrintFormat::NdJson, &batches), "{\"id\":1}\n{\"id\":2}\n");
    }

    #[test]
    fn no_rows_are_a_header_or_an_empty_array() {
        assert_eq!(written(PrintFormat::Csv, &[batch(&[])]), "id\n");
        assert_eq!(written(PrintFormat::Json, &[]), "[]\n");
    }

    #[test]
    fn rows_have_all_columns_and_come_a_few_at_a_time() {
        let text = "x".repeat(PART_BYTES_MAX);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(text.as_str()), None]));
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(2)]));
        let columns = [("id", ids, true), ("text", texts, true)];
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let rows =
            [format!("{{\"id\":null,\"text\":\"{text}\"}}"), r#"{"id":2,"text":null}"#.to_owned()];
        let written = |format| written(format, std::slice::from_ref(&batch));
        assert_eq!(written(PrintFormat::NdJson), format!("{}\n{}\n", rows[0], rows[1]));
        assert_eq!(written(PrintFormat::Json), format!("[{},{}]\n", rows[0], rows[1]));
        assert_eq!(written(PrintFormat::Csv), format!("id,text\n,{text}\n2,\n"));
    }

    #[test]
    fn lists_become_text_in_csv() {
        let rows = vec![Some(vec![Some(1), Some(2)]), None];
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows));
        let batch = RecordBatch::try_from_iter_with_nullable([("v", list, true)]).unwrap();
        assert_eq!(written(PrintFormat::Tsv, &[batch]), "v\n[1, 2]\n\"\"\n");
    }
}
