//! The functions, as DataFusion calls them.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};

use super::super::arguments::{OnBadValue, size_literal};
use super::super::tensor::{fixed_shape_field, variable_shape_field};
use super::column::image_type;
use super::pixels::Mode;
use super::preprocess::Recipe;
use super::signature::{Function, ImageFunction, coerced, info_fields};
use crate::feature::docs::documentation;

/// All functions of this folder, each also as `try_…`.
pub(crate) fn functions() -> Vec<Arc<ScalarUDF>> {
    let under = |on_bad_value: OnBadValue| {
        Function::ALL.map(|function| {
            Arc::new(ScalarUDF::new_from_impl(ImageFunction {
                function,
                on_bad_value,
                name: on_bad_value.name_of(function.name()),
                signature: Signature::user_defined(Volatility::Immutable),
            }))
        })
    };
    [OnBadValue::Fail, OnBadValue::Null].into_iter().flat_map(under).collect()
}

impl ScalarUDFImpl for ImageFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn documentation(&self) -> Option<&Documentation> {
        documentation(self.name())
    }

    fn coerce_types(&self, found: &[DataType]) -> Result<Vec<DataType>> {
        let (parameters, required) = self.function.parameters();
        if found.len() < required || found.len() > parameters.len() {
            return plan_err!(
                "{} has {} arguments, expected {}",
                self.name,
                found.len(),
                self.function.usage()
            );
        }
        let coerced =
            found.iter().zip(parameters).map(|(found, (parameter, kind))| {
                match coerced(found, *kind) {
                    Some(coerced) => Ok(coerced),
                    None => plan_err!(
                        "{}: {parameter} is of type {found}, expected {}; the call is {}",
                        self.name,
                        kind.description(),
                        self.function.usage()
                    ),
                }
            });
        coerced.collect()
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("{} has a return field", self.name)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = |data_type| Ok(Arc::new(Field::new(&self.name, data_type, true)));
        match self.function {
            Function::Decode | Function::Resize | Function::Crop | Function::CenterCrop => {
                field(image_type())
            }
            Function::Info => field(DataType::Struct(info_fields())),
            Function::Encode => field(DataType::Binary),
            Function::ToTensor if args.arg_fields.len() == 1 => {
                variable_shape_field(&self.name, DataType::UInt8, 3)
            }
            Function::ToTensor if args.arg_fields.len() == 2 => {
                plan_err!(
                    "{}: height is there and width is not: {}",
                    self.name,
                    self.function.usage()
                )
            }
            Function::ToTensor => {
                let height = size_literal(&args, 1, &self.name, "height")?;
                let width = size_literal(&args, 2, &self.name, "width")?;
                let mode = self.mode_literal(&args, 3)?;
                let shape = [height, width, mode.channels()];
                fixed_shape_field(&self.name, DataType::UInt8, &shape)
            }
            Function::Preprocess => {
                let recipe = self.recipe(&args)?;
                let side = recipe.crop as usize;
                fixed_shape_field(&self.name, DataType::UInt8, &[side, side, 3])
            }
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns: Vec<ArrayRef> =
            args.args.into_iter().map(|arg| arg.into_array(rows)).collect::<Result<_>>()?;
        let column = self.compute(&columns, rows, &args.return_field)?;
        if is_constant {
            let value = ScalarValue::try_from_array(&column, 0)?;
            return Ok(ColumnarValue::Scalar(value));
        }
        Ok(ColumnarValue::Array(column))
    }
}

impl ImageFunction {
    fn mode_literal(&self, args: &ReturnFieldArgs<'_>, at: usize) -> Result<Mode> {
        let Some(argument) = args.scalar_arguments.get(at) else { return Ok(Mode::Rgb) };
        let name = argument.and_then(|value| value.try_as_str().flatten());
        match name.map(Mode::parse) {
            Some(Ok(mode)) => Ok(mode),
            Some(Err(problem)) => plan_err!("{}: {problem}", self.name),
            None => plan_err!(
                "{}: mode must be a constant, because the type of the result depends on it",
                self.name
            ),
        }
    }

    fn recipe(&self, args: &ReturnFieldArgs<'_>) -> Result<Recipe> {
        let resize = size_literal(args, 1, &self.name, "resize")?;
        let crop = size_literal(args, 2, &self.name, "crop")?;
        match Recipe::try_new(resize as u32, crop as u32) {
            Ok(recipe) => Ok(recipe),
            Err(problem) => plan_err!("{}: {problem}", self.name),
        }
    }
}
