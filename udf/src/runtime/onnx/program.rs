//! What a session says of its program, against what the package declares.

use std::ffi::CString;

use arrow::datatypes::DataType;
use ort::value::{Outlet, TensorElementType, ValueType};

use crate::model::{ModelDeclaration, RuntimeKind, TransformKind, type_name};

/// An input of a program.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) element: TensorElementType,
    /// The declared sizes behind the rows; -1 where any fits.
    pub(super) rest: Vec<i64>,
}

/// A program's inputs in its order, and the results that are asked for.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) inputs: Vec<Input>,
    pub(super) names: Vec<CString>,
    pub(super) results: Vec<CString>,
}

impl Program {
    /// Of a session with these inputs and outputs.
    ///
    /// # Errors
    /// What the program takes or gives that the package does not declare.
    pub(super) fn of(
        model: &ModelDeclaration,
        (inputs, outputs): (&[Outlet], &[Outlet]),
    ) -> Result<Self, String> {
        let inputs = inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let declared = model.signature.inputs.len();
        match &model.transform {
            TransformKind::Tokenize { arguments, .. } => check_arguments(&inputs, arguments)?,
            TransformKind::Tensor if inputs.len() != declared => {
                let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
                return Err(format!(
                    "it takes {} inputs ({}), and the package declares {declared}",
                    inputs.len(),
                    names.join(", ")
                ));
            }
            TransformKind::Tensor => {
                for (input, field) in inputs.iter().zip(&model.signature.inputs) {
                    check_column(input, field.data_type())?;
                }
            }
            TransformKind::Image { .. } if inputs.len() != 1 => {
                return Err(format!("it takes {} inputs, expected one of pixels", inputs.len()));
            }
            TransformKind::Image { .. } => {}
        }
        let names: Vec<&str> = inputs.iter().map(|input| input.name.as_str()).collect();
        let results = results(model, outputs)?;
        Ok(Self { names: c_strings(&names)?, results: c_strings(&results)?, inputs })
    }
}

fn c_strings<T: AsRef<str>>(names: &[T]) -> Result<Vec<CString>, String> {
    let c_string = |name: &T| {
        CString::new(name.as_ref()).map_err(|_| format!("the name {:?} holds a NUL", name.as_ref()))
    };
    names.iter().map(c_string).collect()
}

fn input(outlet: &Outlet) -> Result<Input, String> {
    match outlet.dtype() {
        ValueType::Tensor { ty, shape, .. } if !shape.is_empty() => Ok(Input {
            name: outlet.name().to_owned(),
            element: *ty,
            rest: shape.iter().skip(1).copied().collect(),
        }),
        other => Err(format!(
            "input '{}' is {other}, expected a tensor whose first dimension is the rows",
            outlet.name()
        )),
    }
}

fn check_arguments(inputs: &[Input], arguments: &[String]) -> Result<(), String> {
    match inputs.iter().find(|input| !arguments.contains(&input.name)) {
        Some(input) => Err(format!(
            "it takes '{}', which is not among transform.arguments ({})",
            input.name,
            arguments.join(", ")
        )),
        None => Ok(()),
    }
}

fn check_column(input: &Input, data_type: &DataType) -> Result<(), String> {
    let (item, values) = match data_type {
        DataType::FixedSizeList(item, length) => (item.data_type(), i64::from(*length)),
        scalar => (scalar, 1),
    };
    let fits = match input.element {
        TensorElementType::Float32 | TensorElementType::Float16 | TensorElementType::Bfloat16 => {
            item == &DataType::Float32
        }
        TensorElementType::Float64 => item == &DataType::Float64,
        TensorElementType::Int32 => item == &DataType::Int32,
        TensorElementType::Int64 => item == &DataType::Int64,
        TensorElementType::Bool => item == &DataType::Boolean,
        TensorElementType::String => item == &DataType::Utf8,
        _ => false,
    };
    let known = input.rest.iter().filter(|size| **size >= 0);
    let known = known.fold(1_i64, |all, size| all.saturating_mul(*size));
    let has_any = input.rest.iter().any(|size| *size < 0);
    if fits && (known == values || has_any && known > 0 && values % known == 0) {
        Ok(())
    } else {
        Err(format!(
            "it takes '{}' as {} {:?}, and the package declares {}",
            input.name,
            input.element,
            input.rest,
            type_name(data_type)
        ))
    }
}

/// The named results, or the first ones.
fn results(model: &ModelDeclaration, outputs: &[Outlet]) -> Result<Vec<String>, String> {
    let (named, wanted) = match &model.runtime {
        RuntimeKind::Onnx { results, head: Some(_), .. } => (results.as_slice(), 1),
        RuntimeKind::Onnx { results, .. } => (results.as_slice(), model.signature.results()),
        RuntimeKind::Torch { .. } | RuntimeKind::Aoti { .. } | RuntimeKind::Emulated { .. } => {
            (&[][..], 0)
        }
    };
    let names: Vec<&str> = outputs.iter().map(Outlet::name).collect();
    if let Some(missing) = named.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("it has no result '{missing}'; it has {}", names.join(", ")));
    }
    if names.len() < wanted {
        let found = names.join(", ");
        return Err(format!("it has the results {found}, and the package declares {wanted}"));
    }
    let first = names.iter().take(wanted).map(|name| (*name).to_owned());
    Ok(if named.is_empty() { first.collect() } else { named.to_vec() })
}
