//! Programs whose inputs and outputs are columns: a number, a text or a vector of each row.

use arrow::datatypes::DataType;
use bytesize::MIB;

use super::described::{Described, Refusal};
use super::graph::{Dim, Graph, Kind, Port};
use crate::model::declaration::{BatchLimits, TransformKind};
use crate::model::signature::type_name;

/// What the values of one batch may take.
const BATCH_BYTES: u64 = 16 * MIB;
const BATCH_ROWS_MAX: u64 = 1024;

/// A description of the program's inputs and outputs as they are.
pub(super) fn describe(graph: &Graph) -> Result<Described, Refusal> {
    if graph.inputs.is_empty() || graph.outputs.is_empty() {
        let (inputs, outputs) = (graph.inputs.len(), graph.outputs.len());
        let problem = format!("it has {inputs} inputs and {outputs} outputs");
        return Err((problem, "export a model that computes something of rows".to_owned()));
    }
    let inputs = graph.inputs.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    let one_row = takes_one_row(&graph.inputs)?;
    let output = |port: &Port| output(port, one_row);
    let outputs = graph.outputs.iter().map(output).collect::<Result<Vec<_>, _>>()?;
    let values: u64 = inputs.iter().map(|(_, _, values)| *values).sum();
    let rows = (BATCH_BYTES / (4 * values).max(1)).clamp(1, BATCH_ROWS_MAX) as u32;
    let named = |(name, data_type, _): (String, DataType, u64)| (name, type_name(&data_type));
    Ok(Described {
        about: String::new(),
        inputs: inputs.into_iter().map(named).collect(),
        outputs: outputs.into_iter().map(named).collect(),
        transform: TransformKind::Tensor,
        results: vec![],
        one_row,
        head: None,
        prompts: Default::default(),
        prompt: None,
        batch: BatchLimits {
            max_rows: rows,
            max_tokens: None,
            max_bytes: None,
            window_rows: rows.saturating_mul(8),
        },
        // Convolutions unfold their inputs.
        activation_bytes: u64::from(rows).saturating_mul(values).saturating_mul(4 * 8),
        files: vec![],
    })
}

/// An input's name, the column that it takes, and how many values a row has of it.
fn input(port: &Port) -> Result<(String, DataType, u64), Refusal> {
    let about = format!("input '{}' is {}", port.name, port.kind);
    let Kind::Tensor(element, shape) = &port.kind else {
        let problem = format!("{about}, which no column can be");
        return Err((problem, "export the model with tensors as inputs".to_owned()));
    };
    let Some(item) = element.input_type() else {
        let problem = format!(
            "{about}, and columns are float, double, int32, int64, bool or string (or float16, which \
             is made of float)"
        );
        return Err((problem, "export the model with inputs of these types".to_owned()));
    };
    match shape.as_deref() {
        Some([_, rest @ ..]) => column(&port.name, item, rest).map_err(|problem| {
            let at = format!("{about}, and {problem}");
            match rest.iter().find(|dim| matches!(dim, Dim::Any(_))) {
                Some(dim) => (at, fix_dimension(dim)),
                None => (at, "export the model with another input".to_owned()),
            }
        }),
        _ => Err((
            format!("{about}, expected rows in its first dimension"),
            "export the model with a first dimension that any number of rows fits".to_owned(),
        )),
    }
}

fn fix_dimension(dim: &Dim) -> String {
    match dim {
        Dim::Any(name) if !name.is_empty() => format!(
            "fix it: python -m onnxruntime.tools.make_dynamic_shape_fixed --dim_param {name} \
             --dim_value 224 model.onnx fixed.onnx, with the number that you need"
        ),
        _ => "export the model with fixed sizes of all dimensions but the first".to_owned(),
    }
}

fn output(port: &Port, one_row: bool) -> Result<(String, DataType, u64), Refusal> {
    let about = format!("output '{}' is {}", port.name, port.kind);
    let Kind::Tensor(element, shape) = &port.kind else {
        return Err((
            format!("{about}, which no column can be"),
            "export the model with tensors as outputs; of scikit-learn's classifiers by \
             to_onnx(model, …, options={'zipmap': False})"
                .to_owned(),
        ));
    };
    let Some(item) = element.output_type() else {
        return Err((
            format!("{about}, which no column can be"),
            "export the model with outputs of float, int64, bool or string".to_owned(),
        ));
    };
    let unclear = |reason: &str| {
        (
            format!("{about}, {reason}"),
            "export the model with a fixed size of all dimensions but the first, the rows"
                .to_owned(),
        )
    };
    match shape.as_deref() {
        Some([first, rest @ ..]) => {
            if let (Dim::Fixed(rows), false) = (first, one_row) {
                return Err(unclear(&format!("so it gives {rows} rows whatever it is given")));
            }
            column(&port.name, item, rest).map_err(|problem| unclear(&format!("and {problem}")))
        }
        _ => Err(unclear("so nothing says how many values a row has")),
    }
}

/// The column of values whose other dimensions are these.
fn column(name: &str, item: DataType, rest: &[Dim]) -> Result<(String, DataType, u64), String> {
    let mut values: u64 = 1;
    for dim in rest {
        match dim {
            Dim::Fixed(size) => values = values.saturating_mul(u64::from(*size)),
            Dim::Any(_) => {
                return Err(format!("how many values a row has is not fixed, because of '{dim}'"));
            }
        }
    }
    let length = i32::try_from(values).map_err(|_| format!("{values} values are too many"))?;
    let data_type = match length {
        1 => item,
        _ if item.is_numeric() => DataType::new_fixed_size_list(item, length, true),
        _ => {
            return Err(format!(
                "{length} values of a row that are not numbers do not fit into a column"
            ));
        }
    };
    Ok((name.to_owned(), data_type, values))
}

/// Whether all inputs are of one row; all or none must be.
fn takes_one_row(inputs: &[Port]) -> Result<bool, Refusal> {
    let rows = |port: &Port| match &port.kind {
        Kind::Tensor(_, Some(shape)) => match shape.first() {
            Some(Dim::Fixed(rows)) => Some(*rows),
            _ => None,
        },
        _ => None,
    };
    let remedy = || {
        "export the model with a first dimension of its inputs that any number of rows fits"
            .to_owned()
    };
    let fixed: Vec<_> = inputs.iter().filter(|port| rows(port).is_some()).collect();
    let Some(first) = fixed.first() else { return Ok(false) };
    if let Some(free) = inputs.iter().find(|port| rows(port).is_none()) {
        let problem = format!(
            "its shapes contradict each other: input '{}' is {}, of {} rows, and input '{}' is {}, of \
             any number",
            first.name,
            first.kind,
            rows(first).unwrap_or_default(),
            free.name,
            free.kind
        );
        return Err((problem, remedy()));
    }
    match fixed.iter().find(|port| rows(port) != Some(1)) {
        Some(port) => {
            let problem = format!(
                "input '{}' is {}, so it takes {} rows at a time, no more and no fewer",
                port.name,
                port.kind,
                rows(port).unwrap_or_default()
            );
            Err((problem, remedy()))
        }
        None => Ok(true),
    }
}
