//! Decoded images as a column: `STRUCT<data BINARY, height INT, width INT, channels INT, mode STRING>`.
//!
//! Images of a column differ in size, and a row must say what it is: so it is a struct with plain
//! fields, which SQL reads (`image['height']`), Parquet stores and every client understands. `data`
//! has 64-bit offsets, because a batch of photos has more than two gigabytes.

use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, Int32Builder, LargeBinaryArray, LargeBinaryBuilder,
    StringArray, StringBuilder, StructArray,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int32Type};
use datafusion::common::{Result, exec_datafusion_err};

use super::pixels::{Mode, Pixels};

static FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    Fields::from(vec![
        field("data", DataType::LargeBinary),
        field("height", DataType::Int32),
        field("width", DataType::Int32),
        field("channels", DataType::Int32),
        field("mode", DataType::Utf8),
    ])
});

/// The type of a decoded image.
pub(super) fn image_type() -> DataType {
    DataType::Struct(FIELDS.clone())
}

/// Whether a type is that of decoded images. What reads and writes files may change how its text and
/// bytes are laid out.
pub(super) fn is_image(data_type: &DataType) -> bool {
    let DataType::Struct(fields) = data_type else { return false };
    fields.len() == FIELDS.len()
        && fields.iter().zip(FIELDS.iter()).all(|(found, expected)| {
            found.name() == expected.name()
                && match expected.data_type() {
                    DataType::LargeBinary => super::super::arguments::is_bytes(found.data_type()),
                    DataType::Utf8 => found.data_type().is_string(),
                    other => found.data_type() == other,
                }
        })
}

/// Reads a column of [`image_type`].
pub(super) struct ImageColumn<'a> {
    rows: &'a StructArray,
    data: &'a LargeBinaryArray,
    height: &'a Int32Array,
    width: &'a Int32Array,
    mode: &'a StringArray,
}

impl<'a> ImageColumn<'a> {
    pub(super) fn try_new(column: &'a ArrayRef) -> Result<Self> {
        let found = || exec_datafusion_err!("expected an image, found {}", column.data_type());
        let rows = column.as_struct_opt().ok_or_else(found)?;
        let [data, height, width, _, mode] = rows.columns() else { return Err(found()) };
        Ok(Self {
            rows,
            data: data.as_binary_opt().ok_or_else(found)?,
            height: height.as_primitive_opt::<Int32Type>().ok_or_else(found)?,
            width: width.as_primitive_opt::<Int32Type>().ok_or_else(found)?,
            mode: mode.as_string_opt().ok_or_else(found)?,
        })
    }

    /// `None` for a NULL; an error for a struct that is no image.
    pub(super) fn get(&self, row: usize) -> Option<std::result::Result<Pixels<'a>, String>> {
        let parts: [&dyn Array; 5] = [self.rows, self.data, self.height, self.width, self.mode];
        if parts.iter().any(|part| part.is_null(row)) {
            return None;
        }
        let side = |sides: &Int32Array| u32::try_from(sides.value(row)).unwrap_or_default();
        let (width, height) = (side(self.width), side(self.height));
        Some(Mode::parse(self.mode.value(row)).and_then(|mode| {
            super::limits::check_size(width, height)?;
            Pixels::try_new(width, height, mode, self.data.value(row))
        }))
    }
}

/// Builds a column of [`image_type`].
#[derive(Default)]
pub(super) struct ImageBuilder {
    data: LargeBinaryBuilder,
    height: Int32Builder,
    width: Int32Builder,
    channels: Int32Builder,
    mode: StringBuilder,
    is_valid: Vec<bool>,
}

impl ImageBuilder {
    pub(super) fn append(&mut self, image: Option<Pixels<'_>>) {
        self.is_valid.push(image.is_some());
        let image = image.as_ref();
        self.data.append_option(image.map(|image| &image.data));
        self.height.append_option(image.map(|image| image.height as i32));
        self.width.append_option(image.map(|image| image.width as i32));
        self.channels.append_option(image.map(|image| image.mode.channels() as i32));
        self.mode.append_option(image.map(|image| image.mode.name()));
    }

    pub(super) fn finish(mut self) -> Result<ArrayRef> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.data.finish()),
            Arc::new(self.height.finish()),
            Arc::new(self.width.finish()),
            Arc::new(self.channels.finish()),
            Arc::new(self.mode.finish()),
        ];
        let nulls = NullBuffer::from(self.is_valid);
        Ok(Arc::new(StructArray::try_new(FIELDS.clone(), columns, Some(nulls))?))
    }
}
