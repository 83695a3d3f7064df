//! Rows by the values of partition columns: `PARTITIONED BY (country)` → `country=nl/`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::compute::{CastOptions, can_cast_types, cast_with_options, take_record_batch};
use arrow::datatypes::{DataType, Schema};
use datafusion::common::{Result, exec_err, plan_datafusion_err, plan_err};
use object_store::path::Path;

use crate::delta::NULL_FOLDER;

/// The columns by which folders are named.
#[derive(Debug)]
pub(super) struct Partitions {
    columns: Vec<(String, usize)>,
    /// The columns of the files.
    kept: Vec<usize>,
    /// Whether NULL has a folder: there is a log that says what its name stands for.
    has_nulls: bool,
}

impl Partitions {
    /// # Errors
    /// If there is no such column, its values have no names, or no column is left for the files.
    pub(super) fn try_new(names: &[&str], schema: &Schema, keeps: bool) -> Result<Self> {
        let column = |name: &&str| {
            let found = schema.column_with_name(name);
            let (at, field) = found.ok_or_else(|| {
                let all: Vec<&str> =
                    schema.fields().iter().map(|field| field.name().as_str()).collect();
                plan_datafusion_err!(
                    "PARTITIONED BY names '{name}', which is no column; the columns are {}",
                    all.join(", ")
                )
            })?;
            if field.data_type().is_nested() || !can_cast_types(field.data_type(), &DataType::Utf8)
            {
                return plan_err!(
                    "the partition column '{name}' is a {}, whose values are no names of folders; \
                     partition by a column of texts, numbers, dates or booleans",
                    field.data_type()
                );
            }
            Ok(((*name).to_owned(), at))
        };
        let columns: Vec<_> = names.iter().map(column).collect::<Result<_>>()?;
        let is_kept = |at: &usize| keeps || columns.iter().all(|(_, column)| column != at);
        let kept: Vec<_> = (0..schema.fields().len()).filter(is_kept).collect();
        if kept.is_empty() {
            return plan_err!(
                "PARTITIONED BY names all columns, so that files would have none; leave one out, or \
                 set execution.keep_partition_by_columns"
            );
        }
        Ok(Self { columns, kept, has_nulls: false })
    }

    /// Whether NULL has a folder; then there is none for a text that a log takes for NULL.
    pub(super) fn with_nulls(self, has_nulls: bool) -> Self {
        Self { has_nulls, ..self }
    }

    /// The rows of each folder, in their order; folders in the order of their first rows.
    ///
    /// # Errors
    /// If a value is NULL and NULL has no folder: what reads the folders would take its name for a text.
    pub(super) fn split(&self, batch: &RecordBatch) -> Result<Vec<(Path, RecordBatch)>> {
        let columns = self.columns.iter().map(|(name, at)| self.texts(batch, name, *at));
        let columns: Vec<StringArray> = columns.collect::<Result<_>>()?;
        let mut places: HashMap<Vec<Option<&str>>, usize> = HashMap::new();
        let mut found: Vec<(Path, Vec<u64>)> = vec![];
        for row in 0..batch.num_rows() {
            let values = columns.iter();
            let values = values.map(|column| column.is_valid(row).then(|| column.value(row)));
            let values: Vec<Option<&str>> = values.collect();
            let place = *places.entry(values).or_insert_with_key(|values| {
                found.push((self.folder(values), vec![]));
                found.len() - 1
            });
            found[place].1.push(row as u64);
        }
        let part = |(folder, rows): (Path, Vec<u64>)| {
            let rows = take_record_batch(batch, &UInt64Array::from(rows))?;
            Ok((folder, rows.project(&self.kept)?))
        };
        found.into_iter().map(part).collect()
    }

    fn folder(&self, values: &[Option<&str>]) -> Path {
        let names = self.columns.iter().zip(values);
        names.fold(Path::default(), |folder, ((name, _), value)| {
            folder.join(format!("{name}={}", value.unwrap_or(NULL_FOLDER)))
        })
    }

    fn texts(&self, batch: &RecordBatch, name: &str, at: usize) -> Result<StringArray> {
        let texts = texts(batch, name, at, self.has_nulls)?;
        let is_null = |text: &'_ str| text.is_empty() || text == NULL_FOLDER;
        match texts.iter().flatten().find(|text| self.has_nulls && is_null(text)) {
            Some(text) => exec_err!(
                "the partition column '{name}' is '{text}' in a row, which a Delta table cannot tell from NULL; \
                 write nullif({name}, '{text}'), or another text"
            ),
            None => Ok(texts),
        }
    }
}

fn texts(batch: &RecordBatch, name: &str, at: usize, has_nulls: bool) -> Result<StringArray> {
    let column = batch.column(at);
    if column.logical_null_count() > 0 && !has_nulls {
        return exec_err!(
            "the partition column '{name}' is NULL in {} of {} rows, which names no folder; leave such \
             rows out, or write coalesce({name}, …)",
            column.logical_null_count(),
            batch.num_rows()
        );
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let texts = cast_with_options(&Arc::clone(column), &DataType::Utf8, &options)?;
    Ok(texts.as_string::<i32>().clone())
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int32Array, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    fn batch(names: Vec<Option<&str>>) -> RecordBatch {
        let numbers = (0..names.len() as i32).collect::<Int32Array>();
        let columns: [(&str, Arc<dyn Array>); 2] =
            [("name", Arc::new(StringArray::from(names))), ("n", Arc::new(numbers))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn rows_keep_their_order_in_each_folder() {
        let rows = batch(vec![Some("b"), Some("a/c"), Some("b"), Some("50%")]);
        let partitions = Partitions::try_new(&["name"], &rows.schema(), false).unwrap();
        let found: Vec<_> = partitions.split(&rows).unwrap();
        let found = found.iter().map(|(folder, rows)| {
            let numbers = rows.column(0).as_primitive::<arrow::datatypes::Int32Type>();
            (folder.as_ref(), rows.num_columns(), numbers.values().to_vec())
        });
        let expected =
            [("name=b", 1, vec![0, 2]), ("name=a%2Fc", 1, vec![1]), ("name=50%25", 1, vec![3])];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn null_has_a_folder_where_a_log_says_so() {
        let rows = batch(vec![None, Some("a"), None]);
        let partitions = Partitions::try_new(&["name"], &rows.schema(), false).unwrap();
        let partitions = partitions.with_nulls(true);
        let found: Vec<_> = partitions.split(&rows).unwrap();
        let found = found.iter().map(|(folder, rows)| (folder.as_ref(), rows.num_rows()));
        let null = format!("name={NULL_FOLDER}");
        assert_eq!(found.collect::<Vec<_>>(), [(null.as_str(), 2), ("name=a", 1)]);
        for text in ["", NULL_FOLDER] {
            let error = partitions.split(&batch(vec![Some(text)])).unwrap_err().to_string();
            assert!(error.contains("cannot tell from NULL"), "{error}");
        }
    }

    #[test]
    fn what_names_no_folder_is_refused() {
        let rows = batch(vec![Some("a"), None]);
        let schema = rows.schema();
        let partitions = Partitions::try_new(&["name"], &schema, true).unwrap();
        let error = partitions.split(&rows).unwrap_err().to_string();
        assert!(error.contains("'name' is NULL in 1 of 2 rows"), "{error}");
        let nested = Schema::new(vec![
            Field::new_list("l", Field::new("item", DataType::Int32, true), true),
            Field::new("n", DataType::Int32, true),
        ]);
        for (names, schema, expected) in [
            (&["nam"][..], schema.as_ref(), "'nam', which is no column; the columns are name, n"),
            (&["l"], &nested, "'l' is a List"),
            (&["n", "name"], schema.as_ref(), "names all columns"),
        ] {
            let error = Partitions::try_new(names, schema, false).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
