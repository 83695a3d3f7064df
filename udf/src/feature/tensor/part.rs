//! The part of a tensor between two positions of a dimension.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, MutableArrayData, make_array};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, plan_err};

use super::super::arguments::OnBadValue;
use super::builder::fixed_size_list;
use super::types::TensorType;

/// The elements of a tensor between two positions of one dimension.
#[derive(Debug)]
pub(super) struct Part {
    item: DataType,
    shape: Vec<usize>,
    /// All three from 0; `end` is behind the last.
    dimension: usize,
    start: usize,
    end: usize,
}

impl Part {
    /// Of tensors of a column. `function` is who asks, for messages.
    pub(super) fn try_new(
        function: &str,
        field: &Field,
        tensor: TensorType,
        [dimension, first, last]: [usize; 3],
    ) -> Result<Self> {
        let TensorType::Fixed { item, shape } = tensor else {
            return plan_err!(
                "{function}: {} is {tensor}, expected a tensor of one shape; image_crop cuts images of \
                 different sizes",
                field.name()
            );
        };
        let name = || TensorType::Fixed { item: item.clone(), shape: shape.clone() };
        let side = dimension.checked_sub(1).and_then(|at| shape.get(at)).copied();
        match side {
            Some(side) if (1..=last).contains(&first) && last <= side => {
                Ok(Self { item, shape, dimension: dimension - 1, start: first - 1, end: last })
            }
            Some(side) => plan_err!(
                "{function}: {first} to {last} is not within dimension {dimension} of {}, expected \
                 positions of 1 to {side}",
                name()
            ),
            None => plan_err!(
                "{function}: there is no dimension {dimension} in {}, expected 1 to {}",
                name(),
                shape.len()
            ),
        }
    }

    /// What the elements are.
    pub(super) fn item(&self) -> &DataType {
        &self.item
    }

    /// The sides of each part, one for each dimension.
    pub(super) fn result_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        shape[self.dimension] = self.end - self.start;
        shape
    }

    /// The parts of a column of such tensors.
    pub(super) fn of(&self, tensors: &ArrayRef, on_bad_value: OnBadValue) -> Result<ArrayRef> {
        let tensors = tensors.as_fixed_size_list();
        let elements: usize = self.result_shape().iter().product();
        let values = tensors.values();
        let data = values.to_data();
        let mut copied = MutableArrayData::new(vec![&data], false, tensors.len() * elements);
        let mut is_valid = Vec::with_capacity(tensors.len());
        for row in 0..tensors.len() {
            let is_usable = if tensors.is_valid(row) && values.null_count() > 0 {
                on_bad_value.apply("tensor_slice", self.without_nulls(values, row))?
            } else {
                Some(())
            };
            is_valid.push(tensors.is_valid(row) && is_usable.is_some());
            for range in self.ranges(row) {
                copied.try_extend(0, range.start, range.end)?;
            }
        }
        let item = Arc::new(Field::new_list_field(self.item.clone(), false));
        fixed_size_list(&item, elements as i32, make_array(copied.freeze()), is_valid)
    }

    /// Where the elements of a row's part are among those of all rows.
    fn ranges(&self, row: usize) -> impl Iterator<Item = Range<usize>> {
        let inner: usize = self.shape[self.dimension + 1..].iter().product();
        let side = self.shape[self.dimension] * inner;
        let outer: usize = self.shape[..self.dimension].iter().product();
        let (start, end) = (self.start * inner, self.end * inner);
        (row * outer..(row + 1) * outer).map(move |at| at * side + start..at * side + end)
    }

    /// Tensors hold numbers only, as models take them.
    fn without_nulls(&self, values: &ArrayRef, row: usize) -> std::result::Result<(), String> {
        let nulls = self.ranges(row).map(|range| values.slice(range.start, range.len()));
        match nulls.map(|part| part.null_count()).sum::<usize>() {
            0 => Ok(()),
            nulls => Err(format!(
                "from {} to {} of dimension {}, a tensor has {nulls} elements that are NULL, expected \
                 numbers",
                self.start + 1,
                self.end,
                self.dimension + 1
            )),
        }
    }
}
