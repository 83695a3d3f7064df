//! How two texts become one.

use arrow::datatypes::Fields;

use crate::error::quoted;

/// What is written around and between the texts of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    before: String,
    between: String,
    after: String,
}

impl Template {
    /// Of a text with the names of both inputs in braces, each once and in their order.
    ///
    /// # Errors
    /// If it is something else.
    pub(crate) fn parse(text: &str, inputs: &Fields) -> Result<Self, String> {
        let parsed = match inputs.as_ref() {
            [first, second] => {
                let (first, second) =
                    (format!("{{{}}}", first.name()), format!("{{{}}}", second.name()));
                let is_once = |name: &String| text.matches(name.as_str()).count() == 1;
                let parts = text.split_once(&first).and_then(|(before, rest)| {
                    rest.split_once(&second).map(|(between, after)| (before, between, after))
                });
                parts.filter(|_| is_once(&first) && is_once(&second))
            }
            _ => None,
        };
        match parsed {
            Some((before, between, after)) => {
                let [before, between, after] = [before, between, after].map(str::to_owned);
                Ok(Self { before, between, after })
            }
            None => Err(format!(
                "transform.template is '{}', expected the names of two inputs in braces, each once and in the order \
                 of [[input]]",
                quoted(text)
            )),
        }
    }

    /// The text that the model gets for a pair.
    pub(crate) fn join(&self, first: &str, second: &str) -> String {
        [&self.before, first, &self.between, second, &self.after].concat()
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;

    fn parse(text: &str) -> Result<Template, String> {
        let field = |name| Field::new(name, DataType::Utf8, true);
        Template::parse(text, &vec![field("query"), field("passage")].into())
    }

    #[test]
    fn names_in_braces_stand_for_texts() {
        let template = parse("<Query>: {query}\n<Document>: {passage} {}").unwrap();
        assert_eq!(template.join("{passage}", "b"), "<Query>: {passage}\n<Document>: b {}");
    }

    #[test]
    fn each_input_is_there_once_and_in_order() {
        for text in
            ["", "{query}", "{passage} {query}", "{query} {query} {passage}", "{query} passage"]
        {
            assert!(parse(text).unwrap_err().contains("transform.template is"), "{text}");
        }
    }
}
