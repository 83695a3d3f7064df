//! Values that differ, so that DataFusion's hash tells them apart.
//!
//! To it 0.0 is -0.0, and a nested value without items or fields is NULL: right for joins, but rows that differ in
//! such a value alone would be in any order.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, GenericListArray,
    OffsetSizeTrait, PrimitiveArray, StructArray, UInt32Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, Field, FieldRef, Float16Type, Float32Type, Float64Type, UInt16Type, UInt32Type,
    UInt64Type,
};

/// Numbers by their bits, and nested values beside what they are: NULL, or there.
pub(super) fn told_apart(values: &ArrayRef) -> ArrayRef {
    let nulls = values.nulls().cloned();
    match values.data_type() {
        DataType::Float16 => {
            Arc::new(bits::<Float16Type, UInt16Type>(values, |number| number.to_bits()))
        }
        DataType::Float32 => {
            Arc::new(bits::<Float32Type, UInt32Type>(values, |number| number.to_bits()))
        }
        DataType::Float64 => {
            Arc::new(bits::<Float64Type, UInt64Type>(values, |number| number.to_bits()))
        }
        DataType::List(_) => of_lists(values.as_list::<i32>()),
        DataType::LargeList(_) => of_lists(values.as_list::<i64>()),
        DataType::FixedSizeList(_, size) => {
            let items = told_apart(values.as_fixed_size_list().values());
            let length = values.len();
            // With its length, as lists of nothing have no items to count.
            let lists = FixedSizeListArray::try_new_with_length(
                item_of(&items),
                *size,
                items,
                nulls,
                length,
            );
            lists.map_or_else(|_| Arc::clone(values), |lists| beside_presence(Arc::new(lists)))
        }
        DataType::Map(_, _) => {
            let map = values.as_map();
            let entries = told_apart(&(Arc::new(map.entries().clone()) as ArrayRef));
            list(map.offsets().clone(), entries, nulls)
        }
        DataType::Struct(_) => {
            let columns: Vec<ArrayRef> =
                values.as_struct().columns().iter().map(told_apart).collect();
            let fields = columns.iter().map(item_of);
            let fields = fields.collect::<Vec<FieldRef>>().into();
            let length = values.len();
            let structs = StructArray::try_new_with_length(fields, columns, nulls, length);
            structs
                .map_or_else(|_| Arc::clone(values), |structs| beside_presence(Arc::new(structs)))
        }
        DataType::Dictionary(_, _) => {
            let dictionary = values.as_any_dictionary();
            dictionary.with_values(told_apart(dictionary.values()))
        }
        _ => Arc::clone(values),
    }
}

fn bits<F: ArrowPrimitiveType, B: ArrowPrimitiveType>(
    values: &ArrayRef,
    of: impl Fn(F::Native) -> B::Native,
) -> PrimitiveArray<B> {
    values.as_primitive::<F>().unary(of)
}

fn of_lists<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> ArrayRef {
    list(lists.offsets().clone(), told_apart(lists.values()), lists.nulls().cloned())
}

fn list<O: OffsetSizeTrait>(
    offsets: OffsetBuffer<O>,
    items: ArrayRef,
    nulls: Option<NullBuffer>,
) -> ArrayRef {
    beside_presence(Arc::new(GenericListArray::new(item_of(&items), offsets, items, nulls)))
}

fn item_of(items: &ArrayRef) -> FieldRef {
    Arc::new(Field::new("item", items.data_type().clone(), true))
}

/// Two columns in one that has no NULL.
fn beside_presence(values: ArrayRef) -> ArrayRef {
    let presence =
        UInt32Array::from_iter_values((0..values.len()).map(|at| u32::from(values.is_valid(at))));
    let columns = vec![Arc::new(presence) as ArrayRef, values];
    let fields = columns.iter().map(item_of).collect::<Vec<FieldRef>>();
    Arc::new(StructArray::new(fields.into(), columns, None))
}
