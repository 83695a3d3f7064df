//! A function that looks at its arguments before it computes.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ExpressionPlacement, ReturnFieldArgs, ScalarFunctionArgs,
    ScalarUDF, ScalarUDFImpl, Signature,
};
use forebay_engine::weight;

use super::most::{Column, Most, Row, of};
use super::{MADE_MAX, bound_call, takes};

/// The same function, which refuses to make more than [`MADE_MAX`] bytes of a batch.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Bounded {
    function: Arc<ScalarUDF>,
}

impl Bounded {
    pub(super) fn new(function: Arc<ScalarUDF>) -> Self {
        Self { function }
    }

    fn too_much(&self, of_what: &str) -> DataFusionError {
        DataFusionError::ResourcesExhausted(format!(
            "{} would make more than {MADE_MAX} bytes of {of_what}, the most that this server lets a \
             function make",
            self.function.name()
        ))
    }

    /// What the constants among the arguments of a call may become.
    fn most_of_constants(&self, args: &[Expr]) -> Result<u64> {
        let Some(added) = of(self.function.name()) else { return Ok(0) };
        let constant = |arg: &Expr| match arg {
            Expr::Literal(value, _) => Column::of(&ColumnarValue::Scalar(value.clone())),
            _ => Column::of(&ColumnarValue::Scalar(ScalarValue::Null)),
        };
        let columns: Vec<_> = args.iter().map(constant).collect::<Result<_>>()?;
        Ok(Row { columns: &columns, at: 0 }.most(added))
    }

    /// The results for these rows, in parts of which each is within bounds.
    fn parts(&self, call: &Call<'_>, rows: Range<usize>, made: &mut Vec<ArrayRef>) -> Result<()> {
        if call.most(rows.clone()) > MADE_MAX {
            if rows.len() <= 1 {
                return Err(self.too_much("one row"));
            }
            let middle = rows.start + rows.len() / 2;
            self.parts(call, rows.start..middle, made)?;
            return self.parts(call, middle..rows.end, made);
        }
        let part = self.function.inner().invoke_with_args(call.slice(rows.clone()))?;
        made.push(part.into_array(rows.len())?);
        if made.iter().map(weight::array_bytes).sum::<usize>() as u64 > MADE_MAX {
            Err(self.too_much(&format!(
                "{} rows (set datafusion.execution.batch_size to fewer)",
                call.args.number_rows
            )))
        } else {
            Ok(())
        }
    }
}

/// One batch.
struct Call<'a> {
    args: &'a ScalarFunctionArgs,
    columns: Vec<Column>,
    added: Most,
}

impl Call<'_> {
    /// What these rows may become at the most.
    fn most(&self, rows: Range<usize>) -> u64 {
        let of_row = |at| Row { columns: &self.columns, at }.most(self.added);
        rows.map(of_row).fold(0, u64::saturating_add)
    }

    fn slice(&self, rows: Range<usize>) -> ScalarFunctionArgs {
        let slice = |arg: &ColumnarValue| match arg {
            ColumnarValue::Array(array) => {
                ColumnarValue::Array(array.slice(rows.start, rows.len()))
            }
            ColumnarValue::Scalar(value) => ColumnarValue::Scalar(value.clone()),
        };
        ScalarFunctionArgs {
            args: self.args.args.iter().map(slice).collect(),
            number_rows: rows.len(),
            ..self.args.clone()
        }
    }
}

impl ScalarUDFImpl for Bounded {
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let function = self.function.inner();
        let Some(added) = of(function.name()) else { return function.invoke_with_args(args) };
        let is_one = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_one { 1 } else { args.number_rows };
        let columns = args.args.iter().map(Column::of).collect::<Result<_>>()?;
        let call = Call { args: &args, columns, added };
        let bytes = call.most(0..rows);
        if !takes(bytes) {
            return Err(self.too_much("the constants of one statement while it is planned"));
        }
        if bytes <= MADE_MAX {
            return function.invoke_with_args(args);
        }
        let mut parts = vec![];
        self.parts(&call, 0..rows, &mut parts)?;
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        let made = concat(&parts)?;
        if is_one {
            ScalarValue::try_from_array(&made, 0).map(ColumnarValue::Scalar)
        } else {
            Ok(ColumnarValue::Array(made))
        }
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        // Some join their constants here.
        let bytes = self.most_of_constants(&args)?;
        if bytes > MADE_MAX || !takes(bytes) {
            return Ok(ExprSimplifyResult::Original(args));
        }
        match self.function.inner().simplify(args, info)? {
            // It may be another call of the function that it knows itself as.
            ExprSimplifyResult::Simplified(expr) => {
                let Transformed { data, .. } = expr.transform_up(bound_call)?;
                Ok(ExprSimplifyResult::Simplified(data))
            }
            original => Ok(original),
        }
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let updated = self.function.inner().with_updated_config(config)?;
        Some(ScalarUDF::from(Self::new(Arc::new(updated))))
    }

    // All else as it is.

    fn name(&self) -> &str {
        self.function.inner().name()
    }

    fn aliases(&self) -> &[String] {
        self.function.inner().aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.function.inner().schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.function.inner().signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.inner().return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.function.inner().return_field_from_args(args)
    }

    fn is_strict(&self) -> bool {
        self.function.inner().is_strict()
    }

    fn preimage(
        &self,
        args: &[Expr],
        literal: &Expr,
        info: &SimplifyContext,
    ) -> Result<PreimageResult> {
        self.function.inner().preimage(args, literal, info)
    }

    fn short_circuits(&self) -> bool {
        self.function.inner().short_circuits()
    }

    fn conditional_arguments<'a>(
        &self,
        args: &'a [Expr],
    ) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.function.inner().conditional_arguments(args)
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        self.function.inner().evaluate_bounds(inputs)
    }

    fn propagate_constraints(
        &self,
        interval: &Interval,
        inputs: &[&Interval],
    ) -> Result<Option<Vec<Interval>>> {
        self.function.inner().propagate_constraints(interval, inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.function.inner().output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.function.inner().preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.function.inner().strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.inner().coerce_types(types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.function.inner().documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.function.inner().placement(args)
    }
}
