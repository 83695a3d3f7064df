//! Rows as sorts hold them: texts themselves in place of views of them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column};

/// What a sort reserves for rows that it puts together and sorts at once: about twice their bytes. A column of texts has
/// 2 GiB at most.
pub(crate) const SORTED_AT_ONCE_MAX: usize = 512 << 20;

/// What it takes to order a row at once, in bytes: its key, where it is, and its place. Rows that are smaller would
/// take more than what is reserved for their copy.
const ORDERED_AT_ONCE_MIN: usize = 24;

/// Whether rows may be put together and ordered at once.
pub(crate) fn can_be_at_once(schema: &Schema) -> bool {
    let width = |kind: &DataType| match kind {
        DataType::Null | DataType::Boolean => 0,
        kind => kind.primitive_width().unwrap_or(ORDERED_AT_ONCE_MIN),
    };
    let bytes: usize = schema.fields().iter().map(|field| width(field.data_type())).sum();
    // Dictionaries of many batches may be too many values for one.
    bytes >= ORDERED_AT_ONCE_MIN && !has_common_values(schema)
}

/// The columns with texts in place of views; none if there are none.
pub(crate) fn without_views(schema: &Schema) -> Option<Schema> {
    let has_views = schema.fields().iter().any(|field| stored(field.data_type()).is_some());
    let fields = schema.fields().iter().map(|field| {
        let kind = stored(field.data_type()).unwrap_or_else(|| field.data_type().clone());
        Field::clone(field).with_data_type(kind)
    });
    has_views.then(|| Schema::new(fields.collect::<Vec<_>>()))
}

/// With offsets of eight bytes: a batch of sorted rows may have texts of any size.
pub(crate) fn stored(kind: &DataType) -> Option<DataType> {
    match kind {
        DataType::Utf8View => Some(DataType::LargeUtf8),
        DataType::BinaryView => Some(DataType::LargeBinary),
        _ => None,
    }
}

/// The first columns with these types and names, as many as there are.
pub(crate) fn cast_columns(from: &Schema, to: &Schema) -> Vec<(Arc<dyn PhysicalExpr>, String)> {
    let columns = from.fields().iter().zip(to.fields()).enumerate().map(|(at, (from, to))| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(from.name(), at));
        let column = match from.data_type() == to.data_type() {
            true => column,
            false => Arc::new(CastExpr::new(column, to.data_type().clone(), None)),
        };
        (column, to.name().clone())
    });
    columns.collect()
}

/// Whether rows only refer to values that batches have in common.
pub(crate) fn has_common_values(schema: &Schema) -> bool {
    schema.fields().iter().any(|field| refers(field.data_type()))
}

fn refers(kind: &DataType) -> bool {
    match kind {
        DataType::Dictionary(_, _) | DataType::Utf8View | DataType::BinaryView => true,
        DataType::ListView(_) | DataType::LargeListView(_) | DataType::RunEndEncoded(_, _) => true,
        DataType::List(item) | DataType::LargeList(item) => refers(item.data_type()),
        DataType::FixedSizeList(item, _) | DataType::Map(item, _) => refers(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| refers(field.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| refers(field.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_rows_have_in_common_are_found_at_any_depth() {
        let list = |kind| DataType::List(Arc::new(Field::new("item", kind, true)));
        assert!(refers(&list(list(DataType::Utf8View))));
        assert!(!refers(&list(list(DataType::Utf8))));
    }
}
