//! A value of which a plan knows nothing.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};

/// Its argument, which may be NULL, is no constant and comes in no order, as far as a plan can tell.
///
/// DataFusion takes a call for constant whose arguments all are, volatile or not. So there is a second
/// argument, which is such a call without arguments.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Unknown {
    signature: Signature,
}

impl Unknown {
    /// The value as one that is not known.
    pub fn of(value: Expr) -> Expr {
        let nothing = Self::function().call(vec![]);
        Self::function().call(vec![value, nothing])
    }

    /// The function.
    pub(crate) fn function() -> Arc<ScalarUDF> {
        // Else it would be computed while planning, and what it is given be looked at.
        static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
            let arguments = vec![TypeSignature::Any(2), TypeSignature::Nullary];
            let signature = Signature::one_of(arguments, Volatility::Volatile);
            Arc::new(ScalarUDF::from(Unknown { signature }))
        });
        Arc::clone(&FUNCTION)
    }
}

impl ScalarUDFImpl for Unknown {
    fn name(&self) -> &'static str {
        "forebay_unknown"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(types.first().cloned().unwrap_or(DataType::Null))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(match args.arg_fields.first() {
            Some(field) => Arc::new(field.as_ref().clone().with_nullable(true)),
            None => Arc::new(Field::new(self.name(), DataType::Null, true)),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let value = args.args.into_iter().next();
        Ok(value.unwrap_or(ColumnarValue::Scalar(ScalarValue::Null)))
    }
}
