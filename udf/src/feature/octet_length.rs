//! `octet_length`: DataFusion's is for texts only.

use std::sync::Arc;

use arrow::compute::kernels::length::length;
use arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use super::docs;

pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let signature = Signature::user_defined(Volatility::Immutable);
    vec![Arc::new(ScalarUDF::new_from_impl(OctetLength { signature }))]
}

/// The bytes of a text or a binary, in the types that DataFusion's has for texts.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OctetLength {
    signature: Signature,
}

impl ScalarUDFImpl for OctetLength {
    fn name(&self) -> &'static str {
        "octet_length"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        docs::documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let [value] = found else {
            return plan_err!(
                "octet_length has {} arguments, expected octet_length(value)",
                found.len()
            );
        };
        let value = match value {
            DataType::Dictionary(_, value) => value,
            value => value,
        };
        match value {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => {
                Ok(vec![value.clone()])
            }
            DataType::Utf8View => Ok(vec![DataType::Utf8]),
            DataType::BinaryView | DataType::FixedSizeBinary(_) => Ok(vec![DataType::Binary]),
            // As DataFusion's: numbers and times as they are written.
            value if !value.is_nested() => Ok(vec![DataType::Utf8]),
            value => plan_err!("octet_length takes a text or a binary, found {value}"),
        }
    }

    fn return_type(&self, found: &[DataType]) -> Result<DataType> {
        Ok(match found {
            [DataType::LargeUtf8 | DataType::LargeBinary] => DataType::Int64,
            _ => DataType::Int32,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = args.args.as_slice() else {
            return internal_err!("octet_length without its argument");
        };
        let value = value.to_array(args.number_rows)?;
        Ok(ColumnarValue::Array(length(&value)?))
    }
}
