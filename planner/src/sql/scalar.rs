//! `ml_predict('model', input, … [, options])` as an expression: a marker with the right type.
//!
//! The function cannot be evaluated row by row. The optimizer's
//! [`extract_scalar_inference`](crate::optimizer::extract_scalar_inference) lifts every call into
//! an [`Inference`](crate::logical::Inference) node before anything else looks at the plan.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::functions::core::expr_ext::FieldAccessor;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, TypeSignature, Volatility, lit,
};
use forebay_udf::feature::documentation;
use forebay_udf::model::{Catalog, Determinism, ModelDeclaration, ModelOptions, OnError};

use super::normalize::ML_PREDICT;
use crate::logical::inference::check_inputs;
use crate::logical::vector_literal::may_become;

/// The scalar form of `ml_predict`.
#[derive(Debug)]
pub struct MlPredict {
    catalog: Arc<Catalog>,
    signature: Signature,
    /// Set when a statement has already resolved the model, options applied.
    resolved: Option<Resolved>,
}

/// A model that a statement has resolved, in a call that stands for one invocation however often
/// its outputs are named.
#[derive(Clone, Debug, PartialEq)]
struct Resolved {
    model: Arc<ModelDeclaration>,
    call: u64,
}

impl MlPredict {
    /// For the models of `catalog`.
    pub fn new(catalog: Arc<Catalog>) -> Self {
        // A call without arguments is refused where the others are, in our words.
        let any = vec![TypeSignature::VariadicAny, TypeSignature::Nullary];
        let signature = Signature::one_of(any, Volatility::Volatile);
        Self { catalog, signature, resolved: None }
    }

    /// The model that a call names, with the call's options.
    pub(crate) fn model(&self, args: &[Expr]) -> Result<Call> {
        let literal = |expr: &Expr| match expr {
            Expr::Literal(value, _) => Some(value.clone()),
            _ => None,
        };
        let Some(name) = args.first().and_then(literal).and_then(text) else {
            return plan_err!("{USAGE}");
        };
        // The type of an expression is fixed before its options are known.
        let declared = self.declaration(&name, &ModelOptions::default())?;
        let wanted = declared.signature.inputs.len();
        let (inputs, options) = match args[1..].split_last() {
            Some((last, inputs)) if self.resolved.is_none() && is_options(last, inputs, wanted) => {
                match option_pairs(last) {
                    Some(pairs) => (inputs, ModelOptions::try_from_pairs(pairs?)?),
                    None => (&args[1..], ModelOptions::default()),
                }
            }
            _ => (&args[1..], ModelOptions::default()),
        };
        let model = self.declaration(&name, &options)?;
        if (model.on_error == OnError::Route) != (declared.on_error == OnError::Route) {
            return plan_err!(
                "ml_predict: on_error = 'route' adds a column, so an expression cannot change it; \
                 write FROM ml_predict(TABLE t, MODEL {name}, …), or ALTER MODEL {name} SET \
                 ('on_error' = '{}')",
                model.on_error
            );
        }
        Ok(Call { model, inputs: inputs.to_vec() })
    }

    /// Whether equal calls are the same invocation, even of a volatile model.
    pub(crate) fn is_one_call(&self) -> bool {
        self.resolved.is_some()
    }

    fn declaration(&self, name: &str, options: &ModelOptions) -> Result<Arc<ModelDeclaration>> {
        match &self.resolved {
            Some(resolved) => Ok(Arc::clone(&resolved.model)),
            None => Ok(Arc::new(self.catalog.get(name)?.declaration.with_call_options(options)?)),
        }
    }
}

const USAGE: &str = "ml_predict: the first argument names the model: ml_predict(MODEL m, column)";

/// A call in the scalar form, resolved.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) model: Arc<ModelDeclaration>,
    pub(crate) inputs: Vec<Expr>,
}

/// A call of a model that is already resolved.
pub(crate) fn call(
    catalog: &Arc<Catalog>,
    model: &Arc<ModelDeclaration>,
    inputs: Vec<Expr>,
) -> Expr {
    static CALLS: AtomicU64 = AtomicU64::new(1);
    // Calls with equal results are equal, so that a text that is planned twice gives equal plans: as a
    // key of DISTINCT ON and of ORDER BY.
    let is_volatile =
        model.determinism == Determinism::Volatile || inputs.iter().any(Expr::is_volatile);
    let call = if is_volatile { CALLS.fetch_add(1, Ordering::Relaxed) } else { 0 };
    let resolved = Some(Resolved { model: Arc::clone(model), call });
    let function = MlPredict { resolved, ..MlPredict::new(Arc::clone(catalog)) };
    let args = [lit(model.name.as_str())].into_iter().chain(inputs).collect();
    Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::from(function)), args))
}

/// One expression per output of the model, named like it.
pub(crate) fn outputs_of(call: &Expr, model: &ModelDeclaration) -> Vec<Expr> {
    match &model.output_columns()[..] {
        [one] => vec![call.clone().alias(output_name(model, one))],
        many => many
            .iter()
            .map(|f| call.clone().field(f.name().as_str()).alias(output_name(model, f)))
            .collect(),
    }
}

fn output_name(model: &ModelDeclaration, field: &Field) -> String {
    format!("{}{}", model.output_prefix, field.name())
}

/// The type of a call: the output's own for one output, a struct otherwise. Its fields are named
/// as the model's outputs: `output_prefix` is for columns.
pub(crate) fn return_type(model: &ModelDeclaration) -> DataType {
    match &model.output_columns()[..] {
        [one] => one.data_type().clone(),
        many => DataType::Struct(many.iter().cloned().collect()),
    }
}

impl ScalarUDFImpl for MlPredict {
    fn name(&self) -> &str {
        ML_PREDICT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("ml_predict: the type depends on the model")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let scalar = |i: usize| args.scalar_arguments.get(i).copied().flatten().cloned();
        let Some(name) = scalar(0).and_then(text) else {
            return plan_err!("{USAGE}");
        };
        // No option changes the type.
        let model = self.declaration(&name, &ModelOptions::default())?;
        let wanted = &model.signature.inputs;
        let mut inputs = &args.arg_fields[1..];
        if let Some((last, rest)) = inputs.split_last()
            && is_options_type(last.data_type(), rest.len() >= wanted.len())
        {
            inputs = rest;
        }
        // How long a list is, its type does not say: that is checked where its values are seen.
        let as_written = |(index, given): (usize, &FieldRef)| match wanted.get(index) {
            Some(wanted) if may_become(given.data_type(), wanted.data_type()) => Arc::clone(wanted),
            _ => Arc::clone(given),
        };
        let inputs: Vec<_> = inputs.iter().enumerate().map(as_written).collect();
        check_inputs(&model, &inputs)?;
        Ok(Arc::new(Field::new(self.name(), return_type(&model), true)))
    }

    /// DataFusion's rules for subqueries ask whether an expression is NULL where no row has been found:
    /// a call is, if one of its inputs is.
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_null =
            |arg: &ColumnarValue| matches!(arg, ColumnarValue::Scalar(value) if value.is_null());
        if args.args.iter().skip(1).any(is_null) {
            return Ok(ColumnarValue::Scalar(args.return_field.data_type().try_into()?));
        }
        not_impl_err!(
            "ml_predict cannot be called here; compute it in SELECT, WHERE, GROUP BY or ORDER BY of a \
             query over a table, and what it is given in a subquery of that"
        )
    }
}

impl PartialEq for MlPredict {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.catalog, &other.catalog) && self.resolved == other.resolved
    }
}

impl Eq for MlPredict {}

impl Hash for MlPredict {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.catalog).hash(state);
        self.resolved.as_ref().map(|resolved| resolved.call).hash(state);
    }
}

/// The function of a call of `ml_predict`, if this is one.
pub(crate) fn as_call(expr: &Expr) -> Option<(&MlPredict, &[Expr])> {
    match expr {
        Expr::ScalarFunction(function) => {
            let implementation: &dyn Any = function.func.inner().as_ref();
            Some((implementation.downcast_ref::<MlPredict>()?, &function.args))
        }
        _ => None,
    }
}

fn text(value: ScalarValue) -> Option<String> {
    value.try_as_str().flatten().map(str::to_owned)
}

/// Options are a map or a list of strings, which no model takes as input. A list of numbers is a vector
/// where the model's inputs are not complete without it.
fn is_options_type(data_type: &DataType, is_surplus: bool) -> bool {
    match data_type {
        DataType::Map(..) => true,
        DataType::List(item) => {
            let item = item.data_type();
            item.is_string() || is_surplus && (item.is_numeric() || item.is_null())
        }
        _ => false,
    }
}

/// The same of an expression behind `inputs`, of a model that takes `wanted`.
fn is_options(last: &Expr, inputs: &[Expr], wanted: usize) -> bool {
    let is_surplus = inputs.len() >= wanted;
    match last {
        Expr::ScalarFunction(function) if function.func.name() == "make_array" => {
            is_surplus || function.args.first().is_some_and(is_text)
        }
        Expr::Literal(value, _) => is_options_type(&value.data_type(), is_surplus),
        _ => option_pairs(last).is_some(),
    }
}

fn is_text(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.data_type().is_string(),
        Expr::Cast(cast) => is_text(&cast.expr),
        _ => false,
    }
}

/// Pairs of `make_array('k', 'v', …)` or `map([k, …], [v, …])`; `None` for anything else.
fn option_pairs(expr: &Expr) -> Option<Result<Vec<(String, String)>>> {
    let function = match expr {
        Expr::ScalarFunction(function) => function,
        Expr::Literal(value, _) => return scalar_pairs(value).map(Ok),
        _ => return None,
    };
    let literals =
        |args: &[Expr]| -> Result<Vec<String>> { args.iter().map(literal_text).collect() };
    match (function.func.name(), function.args.as_slice()) {
        ("make_array", args) => Some(literals(args).and_then(|flat| {
            if !flat.len().is_multiple_of(2) {
                return plan_err!("MAP has a key without a value");
            }
            Ok(flat.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
        })),
        ("map", [Expr::ScalarFunction(keys), Expr::ScalarFunction(values)]) => Some(
            literals(&keys.args)
                .and_then(|keys| Ok(keys.into_iter().zip(literals(&values.args)?).collect())),
        ),
        _ => None,
    }
}

fn literal_text(expr: &Expr) -> Result<String> {
    match expr {
        Expr::Literal(value, _) => Ok(value.to_string()),
        Expr::Cast(cast) => literal_text(&cast.expr),
        Expr::Negative(inner) => Ok(format!("-{}", literal_text(inner)?)),
        other => plan_err!("model options must be constants, found {other}"),
    }
}

/// Pairs of a list of strings `['k', 'v', …]`.
fn scalar_pairs(value: &ScalarValue) -> Option<Vec<(String, String)>> {
    let ScalarValue::List(list) = value else { return None };
    let items = ScalarValue::convert_array_to_scalar_vec(list.as_ref()).ok()?;
    let flat: Vec<String> = items.into_iter().flatten().flatten().map(|v| v.to_string()).collect();
    Some(flat.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
}
