//! The declared outputs, as each runtime makes them of a program's results: tensors as they are, numbers as
//! the texts they stand for, and lists of what belongs to each row's tokens.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, ListArray, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, FieldRef, Fields, Int64Type};

use super::labels::Labels;
use crate::error::RuntimeError;
use crate::model::{ModelDeclaration, Package, list_item, parts, type_name};

/// All of a model.
#[derive(Debug)]
pub(super) struct Outputs {
    outputs: Vec<Output>,
    /// How many results the program gives.
    results: usize,
    /// Whether the last of them says what the lists hold.
    has_lists: bool,
}

/// One output, and what the program gives for it.
#[derive(Debug)]
pub(super) struct Output {
    field: FieldRef,
    parts: Vec<Part>,
}

/// What one result of the program holds: the values, or one field of structs.
#[derive(Debug)]
pub(super) struct Part {
    field: FieldRef,
    /// The type of the whole output, for messages.
    declared: String,
    /// The texts that the program's numbers stand for.
    labels: Option<Labels>,
}

/// Why a result is not what the package declares.
pub(super) struct Unlike {
    pub(super) expected: String,
    pub(super) found: String,
}

impl Outputs {
    /// Reads the files of labels.
    pub(super) fn load(model: &ModelDeclaration, package: &Package) -> Result<Self, RuntimeError> {
        let outputs = model.signature.outputs.iter().zip(&package.manifest.labels);
        let output = |(field, file): (&FieldRef, &Option<String>)| {
            let labels = file.as_ref().map(|file| Labels::load(model, package, file));
            Ok(Output::new(field, labels.transpose()?))
        };
        Ok(Self {
            outputs: outputs.map(output).collect::<Result<_, RuntimeError>>()?,
            results: model.signature.results(),
            has_lists: model.signature.has_lists(),
        })
    }

    /// How many outputs there are.
    pub(super) fn count(&self) -> usize {
        self.outputs.len()
    }

    /// How many results the program gives.
    pub(super) fn results(&self) -> usize {
        self.results
    }

    /// One column per output, or the name of the output that is not as declared, and why. `value` makes a column
    /// of one result, `lists` one of an output's results and the program's last, which says what lists hold.
    /// There may be fewer results than declared, and then there are fewer columns.
    pub(super) fn columns<T, E>(
        &self,
        results: &[T],
        value: impl Fn(&Part, &T) -> Result<ArrayRef, E>,
        lists: impl Fn(&Output, &[T], &T) -> Result<ArrayRef, E>,
    ) -> Result<Vec<ArrayRef>, (String, E)> {
        let (kept, mut rest) = match results.split_last() {
            Some((kept, others)) if self.has_lists => (Some(kept), others),
            _ => (None, results),
        };
        let with_results = self.outputs.iter().map_while(|output| {
            let (own, others) = rest.split_at_checked(output.parts.len())?;
            rest = others;
            Some((output, own))
        });
        let column = |(output, own): (&Output, &[T])| {
            let column = match kept.filter(|_| output.is_list()) {
                Some(kept) => lists(output, own, kept),
                None => value(output.value(), &own[0]),
            };
            column.map_err(|error| (output.name().to_owned(), error))
        };
        with_results.map(column).collect()
    }

    /// The name of the output that a result is of.
    pub(super) fn name(&self, result: usize) -> &str {
        let mut names =
            self.outputs.iter().flat_map(|output| output.parts.iter().map(|_| output.name()));
        names.nth(result).unwrap_or_default()
    }
}

impl Output {
    /// Of this field; the labels are those of its texts.
    pub(super) fn new(of: &FieldRef, labels: Option<Labels>) -> Self {
        let part = |field: &FieldRef| Part {
            field: Arc::clone(field),
            declared: type_name(of.data_type()),
            labels: labels.clone().filter(|_| field.data_type() == &DataType::Utf8),
        };
        Self { field: Arc::clone(of), parts: parts(of).iter().map(part).collect() }
    }

    /// As the package calls it.
    fn name(&self) -> &str {
        self.field.name()
    }

    /// Whether its length differs from row to row.
    fn is_list(&self) -> bool {
        list_item(&self.field).is_some()
    }

    /// What its results hold.
    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The only one, of what is no list.
    fn value(&self) -> &Part {
        &self.parts[0]
    }

    /// What a list expects of its results.
    pub(super) fn expected(&self, rows: usize) -> String {
        let declared = type_name(self.field.data_type());
        format!("{declared} for {rows} rows, and a last result that is bool of the same shape")
    }

    /// Lists of so many values each; `values` has those of each part, row after row.
    pub(super) fn lists(
        &self,
        lengths: impl IntoIterator<Item = usize>,
        mut values: Vec<ArrayRef>,
    ) -> Result<ArrayRef, arrow::error::ArrowError> {
        let item = list_item(&self.field).unwrap_or(&self.field);
        let values = match item.data_type() {
            DataType::Struct(fields) => structs(fields, values)?,
            _ => values.remove(0),
        };
        let offsets = OffsetBuffer::from_lengths(lengths);
        Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, None)?))
    }
}

fn structs(fields: &Fields, values: Vec<ArrayRef>) -> Result<ArrayRef, arrow::error::ArrowError> {
    Ok(Arc::new(StructArray::try_new(fields.clone(), values, None)?))
}

impl Part {
    /// The type of what the program gives.
    pub(super) fn given(&self) -> &DataType {
        match &self.labels {
            Some(_) => &DataType::Int64,
            None => self.field.data_type(),
        }
    }

    /// The texts of indices, if they stand for some.
    pub(super) fn named(&self, values: ArrayRef) -> Result<ArrayRef, Unlike> {
        let Some(labels) = &self.labels else { return Ok(values) };
        labels.texts(values.as_primitive::<Int64Type>()).map_err(|index| Unlike {
            expected: format!("{} of {} labels", self.declared, labels.count()),
            found: format!("the index {index}"),
        })
    }
}
