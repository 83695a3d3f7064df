//! What models give for the values of a kind, without them.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::util::display::array_value_to_string;

use super::kinds::{KINDS, NUMBER, TEXTS, named};
use super::tables::Tables;
use crate::api::random::results::{Output, Results, answers};

/// A model that can be asked of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) name: &'static str,
    /// What it is asked, as a text with `{}`.
    input: &'static str,
    /// Its output, of two how that is named.
    pub(super) output: &'static str,
    outputs: usize,
    /// The kind of its output.
    pub(super) gives: &'static str,
}

const ECHO: Model =
    Model { name: "echo", input: "{}", output: "digest", outputs: 1, gives: NUMBER };
/// Of other types than BIGINT only by a cast.
const ECHO_OF_OTHERS: Model = Model { input: "CAST({} AS BIGINT)", ..ECHO };
const SENTIMENT: Model =
    Model { name: "sentiment", input: "{}", output: "label", outputs: 2, gives: "text" };
const VECTOR: Model =
    Model { name: "vector", input: "{}", output: "digest", outputs: 1, gives: NUMBER };

/// By the kinds of their inputs.
const ASKED: [(&str, Model); 9] = [
    ("utf8", SENTIMENT),
    ("large_utf8", SENTIMENT),
    ("utf8_view", SENTIMENT),
    ("dictionary", Model { input: "CAST({} AS VARCHAR)", ..SENTIMENT }),
    ("vector", VECTOR),
    ("int8", ECHO_OF_OTHERS),
    ("int16", ECHO_OF_OTHERS),
    ("int32", ECHO_OF_OTHERS),
    ("numbers", ECHO_OF_OTHERS),
];

/// What the models give.
#[derive(Debug)]
pub(super) struct Models {
    numbers: Results,
    /// In place of CASE's operand stands `{}`.
    texts: String,
    vectors: String,
}

impl Models {
    pub(super) fn compute(tables: &Tables) -> Self {
        let texts = TEXTS.map(|text| Arc::new(StringArray::from(vec![text])) as ArrayRef);
        let keys = TEXTS.map(|text| format!("'{text}'"));
        let kind = named("vector").unwrap();
        let vectors = (0..KINDS[kind].len()).map(|at| tables.pool(kind).slice(at, 1));
        let lengths = (0..KINDS[kind].len()).map(|at| format!("{}[1]", KINDS[kind].literal(at)));
        Self {
            numbers: Results::compute(),
            texts: cases("CAST({} AS VARCHAR)", keys.into_iter(), SENTIMENT, texts.into_iter()),
            vectors: cases("{}[1]", lengths, VECTOR, vectors),
        }
    }

    /// The model that is asked of `n`.
    pub(super) fn of_numbers() -> Model {
        ECHO
    }

    /// The model that can be asked of a kind.
    pub(super) fn of(kind: usize) -> Option<Model> {
        ASKED.iter().find(|(asked, _)| named(asked) == Some(kind)).map(|(_, model)| *model)
    }

    /// What a model gives for a column, without the model.
    pub(super) fn lookup(&self, model: Model, column: &str) -> String {
        match model.name {
            "echo" => self.numbers.lookup(Output::Echo, &model.input.replace("{}", column)),
            "sentiment" => self.texts.replace("{}", column),
            _ => self.vectors.replace("{}", column),
        }
    }
}

impl Model {
    /// Whether a column is what it is asked, as DESCRIPTOR has it.
    pub(super) fn is_asked_of_columns(self) -> bool {
        self.input == "{}"
    }

    /// A call in an expression.
    pub(super) fn call(self, column: &str) -> String {
        let input = self.input.replace("{}", column);
        let call = format!("ml_predict(MODEL {}, {input})", self.name);
        if self.outputs > 1 { format!("{call}['{}']", self.output) } else { call }
    }
}

/// `CASE {} WHEN … THEN … END`
fn cases(
    operand: &str,
    keys: impl Iterator<Item = String>,
    model: Model,
    inputs: impl Iterator<Item = ArrayRef>,
) -> String {
    let results = answers(model.name, inputs).into_iter().map(|outputs| {
        let text = array_value_to_string(&outputs[0], 0).unwrap();
        format!("arrow_cast('{text}', '{}')", outputs[0].data_type())
    });
    let cases = keys.zip(results).map(|(key, result)| format!(" WHEN {key} THEN {result}"));
    format!("CASE {operand}{} END", cases.collect::<String>())
}
