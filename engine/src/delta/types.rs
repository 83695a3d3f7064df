//! Which types the columns of a table can have.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::{Result, not_impl_err};

/// What names the folder of rows whose partition column is NULL, since Hive.
pub(crate) const NULL_FOLDER: &str = "__HIVE_DEFAULT_PARTITION__";

/// The column of a Delta table for values of this one: of the same values, where Delta has one way to hold
/// what Arrow has several for.
///
/// # Errors
/// If a table cannot hold them.
pub fn stored_as(field: &Field) -> Result<Field> {
    let kind = stored(field.name(), field.data_type())?;
    Ok(Field::new(field.name(), kind, field.is_nullable()))
}

fn stored(column: &str, kind: &DataType) -> Result<DataType> {
    let inner = |field: &FieldRef| -> Result<FieldRef> {
        let kind = stored(column, field.data_type())?;
        Ok(Arc::new(Field::new(field.name(), kind, field.is_nullable())))
    };
    Ok(match kind {
        DataType::Boolean
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::Int64
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Decimal128(..) => kind.clone(),
        DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) => {
            DataType::Decimal128(*digits, *scale)
        }
        DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::Timestamp(_, None) => DataType::Timestamp(TimeUnit::Microsecond, None),
        DataType::Timestamp(_, Some(_)) => {
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
        }
        DataType::Dictionary(_, value) => stored(column, value)?,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            DataType::List(inner(item)?)
        }
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(inner).collect::<Result<Vec<_>>>()?.into())
        }
        DataType::Map(entries, is_sorted) => DataType::Map(inner(entries)?, *is_sorted),
        other => {
            return not_impl_err!(
                "a Delta table has no column for the {other} of '{column}'; give it another type, such as \
                 DECIMAL(20, 0) for UNSIGNED BIGINT, DOUBLE for a half-precision float, VARCHAR for a time"
            );
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_lost() {
        let item = |kind| Arc::new(Field::new_list_field(kind, true));
        for (kind, expected) in [
            (DataType::UInt32, DataType::Int64),
            (DataType::Utf8View, DataType::Utf8),
            (
                DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into())),
                DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            ),
            (
                DataType::FixedSizeList(item(DataType::UInt8), 3),
                DataType::List(item(DataType::Int16)),
            ),
        ] {
            assert_eq!(stored_as(&Field::new("c", kind, true)).unwrap().data_type(), &expected);
        }
        for kind in [DataType::UInt64, DataType::Float16, DataType::Time32(TimeUnit::Second)] {
            let error = stored_as(&Field::new("c", kind, true)).unwrap_err().to_string();
            assert!(error.contains("of 'c'"), "{error}");
        }
    }
}
