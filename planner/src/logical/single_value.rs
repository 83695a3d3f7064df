//! The value of the one row that a scalar subquery may have.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};

/// An aggregate: the value of the only row, NULL if there is none, an error if there are more.
///
/// It stands above subqueries that are planned as joins, where a second row would be one more match.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct SingleValue {
    signature: Signature,
}

impl SingleValue {
    /// What plans call it.
    pub const NAME: &'static str = "forebay_single_value";

    /// The aggregate that plans call. It is not registered in any session.
    pub fn function() -> Arc<AggregateUDF> {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(AggregateUDF::from(Self { signature }))
    }
}

impl AggregateUDFImpl for SingleValue {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, args: &[DataType]) -> Result<DataType> {
        match args {
            [value] => Ok(value.clone()),
            _ => exec_err!("{} takes one argument, found {}", Self::NAME, args.len()),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let value = ScalarValue::try_from(args.return_field.data_type())?;
        Ok(Box::new(Single { value, is_set: false }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let value = args.return_field.as_ref().clone().with_name("value").with_nullable(true);
        Ok(vec![Arc::new(value), Arc::new(Field::new("is_set", DataType::Boolean, false))])
    }
}

#[derive(Debug)]
struct Single {
    value: ScalarValue,
    is_set: bool,
}

impl Single {
    fn set(&mut self, values: &ArrayRef, row: usize) -> Result<()> {
        if self.is_set {
            return exec_err!("Scalar subquery returned more than one row");
        }
        self.value = ScalarValue::try_from_array(values, row)?;
        self.is_set = true;
        Ok(())
    }
}

impl Accumulator for Single {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        // One more than there may be is enough to know.
        (0..values[0].len().min(2)).try_for_each(|row| self.set(&values[0], row))
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let is_set = states[1].as_boolean();
        (0..is_set.len())
            .filter(|&row| is_set.value(row))
            .try_for_each(|row| self.set(&states[0], row))
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.value.clone(), ScalarValue::from(self.is_set)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) - size_of_val(&self.value) + self.value.size()
    }
}
