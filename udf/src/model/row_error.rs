//! Why the inference of one row failed: what the column `_error` holds.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, Int32Array, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use crate::error::RuntimeError;

/// The column that `on_error = 'route'` adds behind a model's outputs.
pub const ERROR_COLUMN: &str = "_error";

static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    let field = |name, data_type| Field::new(name, data_type, true);
    vec![
        field("code", DataType::Utf8),
        field("message", DataType::Utf8),
        field("attempt", DataType::Int32),
    ]
    .into()
});

/// `_error STRUCT<code STRING, message STRING, attempt INT>`; NULL where nothing failed.
pub fn error_field() -> FieldRef {
    Arc::new(Field::new(ERROR_COLUMN, DataType::Struct(FIELDS.clone()), true))
}

/// A row that a model could not be run on. Says nothing of the batch that the row was in: the same
/// row gives the same error in every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowError {
    /// Which kind: see [`RuntimeError::code`].
    pub code: &'static str,
    /// The runtime's or the transform's message.
    pub message: String,
    /// At which attempt the row was given up, counted from 1.
    pub attempt: i32,
}

impl RowError {
    /// The error of a row that was alone in its batch.
    pub fn new(error: &RuntimeError, attempt: i32) -> Self {
        Self { code: error.code(), message: error.problem().to_owned(), attempt }
    }

    /// A column of the type of [`error_field`].
    pub fn column(rows: &[Option<Self>]) -> ArrayRef {
        // NULL like the struct around them: whoever reads a field does not look at the struct.
        let codes = StringArray::from_iter(rows.iter().map(|row| row.as_ref().map(|e| e.code)));
        let messages =
            StringArray::from_iter(rows.iter().map(|row| row.as_ref().map(|e| &e.message)));
        let attempts =
            Int32Array::from_iter(rows.iter().map(|row| row.as_ref().map(|e| e.attempt)));
        let nulls = rows.iter().map(Option::is_some).collect::<NullBuffer>();
        let columns: Vec<ArrayRef> = vec![Arc::new(codes), Arc::new(messages), Arc::new(attempts)];
        Arc::new(StructArray::new(FIELDS.clone(), columns, Some(nulls)))
    }
}
