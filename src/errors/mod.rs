//! Error messages for people: what went wrong, without the wrappings it travelled in.

pub(crate) mod store;
mod words;

use std::error::Error;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;
use forebay_engine::RemoteError;

use store::in_words;
use words::plain;

/// The message without the kinds of errors that DataFusion puts before it.
pub fn readable(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Configuration(text) => words::of_option(text),
        DataFusionError::Plan(text) | DataFusionError::Execution(text) => plain(text),
        DataFusionError::NotImplemented(text) => format!("not supported: {}", plain(text)),
        DataFusionError::ResourcesExhausted(text) => format!("out of memory: {}", plain(text)),
        DataFusionError::SQL(error, _) => syntax(error),
        DataFusionError::SchemaError(error, _) => error.to_string(),
        DataFusionError::IoError(error) => error.to_string(),
        DataFusionError::ArrowError(error, _) => arrow(error),
        DataFusionError::ObjectStore(error) => in_words(error),
        DataFusionError::External(error) => external(error.as_ref()),
        DataFusionError::Diagnostic(_, error) => readable(error),
        DataFusionError::Shared(error) => readable(error),
        DataFusionError::Context(context, error) => in_context(context, &readable(error)),
        DataFusionError::Collection(errors) => collection(errors),
        DataFusionError::Internal(text) if words::is_of_unfinished(text) => {
            "a file could not be finished, and a part of it may be there; the log of the process that \
             wrote it says why"
                .to_owned()
        }
        other => plain(&other.to_string()),
    }
}

fn syntax(error: &ParserError) -> String {
    match error {
        ParserError::ParserError(text) | ParserError::TokenizerError(text) => {
            format!("syntax error: {}", lower_first(text))
        }
        ParserError::RecursionLimitExceeded => "syntax error: nested too deeply".to_owned(),
    }
}

fn arrow(error: &ArrowError) -> String {
    match error {
        ArrowError::ExternalError(error) => external(error.as_ref()),
        // The kind says nothing that the text does not.
        ArrowError::IoError(text, _)
        | ArrowError::CastError(text)
        | ArrowError::MemoryError(text)
        | ArrowError::ParseError(text)
        | ArrowError::SchemaError(text)
        | ArrowError::ComputeError(text)
        | ArrowError::CsvError(text)
        | ArrowError::JsonError(text)
        | ArrowError::AvroError(text)
        | ArrowError::IpcError(text)
        | ArrowError::InvalidArgumentError(text)
        | ArrowError::ParquetError(text)
        | ArrowError::CDataInterface(text) => text.clone(),
        ArrowError::NotYetImplemented(_)
        | ArrowError::DivideByZero
        | ArrowError::ArithmeticOverflow(_)
        | ArrowError::DictionaryKeyOverflowError
        | ArrowError::RunEndIndexOverflowError
        | ArrowError::OffsetOverflowError(_) => error.to_string(),
    }
}

fn external(error: &(dyn Error + 'static)) -> String {
    if let Some(error) = error.downcast_ref::<DataFusionError>() {
        return readable(error);
    }
    if let Some(error) = error.downcast_ref::<ArrowError>() {
        return arrow(error);
    }
    if let Some(error) = error.downcast_ref::<object_store::Error>() {
        return in_words(error);
    }
    if let Some(error) = error.downcast_ref::<RemoteError>() {
        return plain(&error.message);
    }
    error.to_string()
}

/// Names of DataFusion's rules help nobody; other contexts may.
fn in_context(context: &str, message: &str) -> String {
    let is_rule = !context.contains(' ') || context.starts_with("Optimizer rule");
    if is_rule { message.to_owned() } else { format!("{message} ({context})") }
}

fn collection(errors: &[DataFusionError]) -> String {
    let first = errors.first().map(readable).unwrap_or_default();
    match errors.len() {
        0 | 1 => first,
        more => format!("{first} (and {} more)", more - 1),
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_lowercase().chain(chars).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappings_disappear() {
        let plan = || DataFusionError::Plan("table 'x' not found".to_owned());
        let wrapped = DataFusionError::Context("type_coercion".to_owned(), Box::new(plan()));
        let wrapped = ArrowError::ExternalError(Box::new(wrapped));
        let wrapped = DataFusionError::ArrowError(Box::new(wrapped), None);
        let wrapped = DataFusionError::Shared(std::sync::Arc::new(wrapped));
        assert_eq!(readable(&DataFusionError::External(Box::new(wrapped))), "table 'x' not found");
        let both = DataFusionError::Collection(vec![plan(), plan()]);
        assert_eq!(readable(&both), "table 'x' not found (and 1 more)");
    }

    #[test]
    fn syntax_errors_say_so() {
        let error = ParserError::ParserError("Expected: x, found: y at Line: 1".to_owned());
        let error = DataFusionError::SQL(Box::new(error), None);
        assert_eq!(readable(&error), "syntax error: expected: x, found: y at Line: 1");
    }
}
