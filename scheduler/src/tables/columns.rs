//! Columns from rows, one closure each.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray,
    TimestampMillisecondArray,
};
use datafusion::common::Result;

/// In the form that every reader of time zones knows.
const UTC: &str = "+00:00";

/// The columns of a table that is being made.
pub(super) struct Columns<'a, T> {
    rows: &'a [T],
    columns: Vec<(&'static str, ArrayRef)>,
}

impl<'a, T> Columns<'a, T> {
    pub(super) fn of(rows: &'a [T]) -> Self {
        Self { rows, columns: vec![] }
    }

    pub(super) fn text<S: AsRef<str>>(self, name: &'static str, of: impl Fn(&'a T) -> S) -> Self {
        self.maybe_text(name, |row| Some(of(row)).filter(|text| !text.as_ref().is_empty()))
    }

    fn maybe_text<S: AsRef<str>>(
        self,
        name: &'static str,
        of: impl Fn(&'a T) -> Option<S>,
    ) -> Self {
        let column: StringArray = self.rows.iter().map(of).collect();
        self.with(name, Arc::new(column))
    }

    pub(super) fn count(self, name: &'static str, of: impl Fn(&T) -> u64) -> Self {
        self.maybe_count(name, |row| Some(of(row)))
    }

    /// No number is larger than SQL's.
    pub(super) fn maybe_count(self, name: &'static str, of: impl Fn(&T) -> Option<u64>) -> Self {
        let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
        let column: Int64Array = self.rows.iter().map(|row| of(row).map(number)).collect();
        self.with(name, Arc::new(column))
    }

    /// Thousandths as a number.
    pub(super) fn milli(self, name: &'static str, of: impl Fn(&T) -> u64) -> Self {
        let of = |row| of(row) as f64 / 1000.0;
        let column: Float64Array = self.rows.iter().map(|row| Some(of(row))).collect();
        self.with(name, Arc::new(column))
    }

    pub(super) fn flag(self, name: &'static str, of: impl Fn(&T) -> bool) -> Self {
        let column: BooleanArray = self.rows.iter().map(|row| Some(of(row))).collect();
        self.with(name, Arc::new(column))
    }

    /// Milliseconds since 1970.
    pub(super) fn time(self, name: &'static str, of: impl Fn(&T) -> Option<i64>) -> Self {
        let column: TimestampMillisecondArray = self.rows.iter().map(of).collect();
        self.with(name, Arc::new(column.with_timezone(UTC)))
    }

    fn with(mut self, name: &'static str, column: ArrayRef) -> Self {
        self.columns.push((name, column));
        self
    }

    pub(super) fn build(self) -> Result<RecordBatch> {
        let columns = self.columns.into_iter().map(|(name, column)| (name, column, true));
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    }
}
