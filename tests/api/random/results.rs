//! What the models give, straight from their runtime and one row at a time.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array};
use arrow::datatypes::Int64Type;
use forebay_udf::model::Package;
use forebay_udf::runtime::{self, Device};

use super::writer::KEYS;

/// Lists in SQL, whose first elements are for the smallest key.
#[derive(Debug)]
pub(in crate::api) struct Results {
    echo: String,
    twin: [String; 2],
}

/// A model and which of its outputs.
#[derive(Clone, Copy, Debug)]
pub(in crate::api) enum Output {
    Echo,
    First,
    Second,
}

impl Results {
    pub(in crate::api) fn compute() -> Self {
        let [echo] = lists("echo");
        Self { echo, twin: lists("twin") }
    }

    /// What the model gives for a key, without it.
    pub(in crate::api) fn lookup(&self, output: Output, key: &str) -> String {
        let list = match output {
            Output::Echo => &self.echo,
            Output::First => &self.twin[0],
            Output::Second => &self.twin[1],
        };
        format!("{list}[{key} + {KEYS}]")
    }
}

fn lists<const OUTPUTS: usize>(name: &str) -> [String; OUTPUTS] {
    let keys = (1 - KEYS..KEYS).map(|key| Arc::new(Int64Array::from(vec![key])) as ArrayRef);
    let outputs = answers(name, keys);
    std::array::from_fn(|at| {
        let values = outputs.iter().map(|row| row[at].as_primitive::<Int64Type>().value(0));
        format!("[{}]", values.map(|value| value.to_string()).collect::<Vec<_>>().join(", "))
    })
}

/// What a model of `tests/models` gives for each input, alone.
pub(in crate::api) fn answers(
    name: &str,
    inputs: impl Iterator<Item = ArrayRef>,
) -> Vec<Vec<ArrayRef>> {
    let folder = Path::new("tests/models").join(name).canonicalize().unwrap();
    let package = Package::open(&folder, None).unwrap();
    let url = url::Url::from_directory_path(&folder).unwrap();
    let model = package.manifest.declaration(name, url, package.content_hash.clone());
    let replica = runtime::load(&model, &package, Device::Emulated(0)).unwrap();
    inputs.map(|input| replica.forward(replica.prepare(&[input]).unwrap()).unwrap()).collect()
}
