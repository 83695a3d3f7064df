//! Error messages for people: what went wrong, without the wrappings it travelled in.

pub(crate) mod store;

use std::error::Error;

use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;
use forebay_engine::RemoteError;

use store::in_words;

/// The message without the kinds of errors that DataFusion puts before it.
pub fn readable(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Configuration(text) if STORES.iter().any(|store| text == store) => {
            "a server reads with the keys of its own environment, or of its --init file; OPTIONS about a \
             store are for sessions that read it themselves"
                .to_owned()
        }
        DataFusionError::Plan(text)
        | DataFusionError::Execution(text)
        | DataFusionError::Configuration(text) => plain(text),
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
        DataFusionError::Internal(text) if text.starts_with(UNFINISHED) => {
            "a file could not be finished, and a part of it may be there; the log of the process that \
             wrote it says why"
                .to_owned()
        }
        other => plain(&other.to_string()),
    }
}

/// What DataFusion says of `OPTIONS` about stores where nobody reads them.
const STORES: [&str; 2] =
    ["Could not find config namespace \"aws\"", "Could not find config namespace \"gcp\""];

/// All that DataFusion says when the last bytes of a file cannot be written.
const UNFINISHED: &str = "Error encountered while finalizing writes!";

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
        ArrowError::IoError(text, _) => text.clone(),
        other => {
            let text = other.to_string();
            // `Cast error: …`, `Compute error: …`: the kind says nothing that the text does not.
            text.split_once(" error: ").map_or(text.clone(), |(_, message)| message.to_owned())
        }
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

/// A message without the wrappings that were printed into it on the way.
fn plain(text: &str) -> String {
    let end = text.find(DataFusionError::BACK_TRACE_SEP).unwrap_or(text.len());
    let text = about_arguments(&text[..end]).trim_end();
    // Whoever names no catalog and no schema need not read them.
    text.replace("Error during planning: ", "").replace("'datafusion.public.", "'")
}

/// What a call's arguments should have been: the function's own words if it has any, and otherwise the
/// signatures that there are, without the failed attempt at each that is printed before them.
fn about_arguments(text: &str) -> &str {
    let Some(start) = text.find(NO_FUNCTION) else { return text };
    let (attempts, signatures) = text.split_at(start);
    match attempts.split_once(OWN_WORDS) {
        // Nothing but a placeholder stands where its signature would.
        Some((_, own)) if signatures.trim_end().ends_with("(UserDefined)") => {
            let own = own.strip_prefix("Execution error: ").unwrap_or(own).trim_end();
            own.strip_suffix('.').unwrap_or(own)
        }
        _ => signatures,
    }
}

const NO_FUNCTION: &str = "No function matches the given name";
const OWN_WORDS: &str = "user-defined coercion failed with: ";

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
    fn messages_within_messages_are_plain() {
        let plan = |text: &str| readable(&DataFusionError::Plan(text.to_owned()));
        let text = "Internal error: Function 'f' failed … No function matches the given name 'f'.";
        assert_eq!(plan(text), "No function matches the given name 'f'.");
        assert_eq!(plan("table 'datafusion.public.x' not found"), "table 'x' not found");
    }

    #[test]
    fn a_function_says_itself_what_it_expects() {
        let plan = |text: &str| readable(&DataFusionError::Plan(text.to_owned()));
        let own = "Execution error: Function 'f' user-defined coercion failed with: \
                   Error during planning: f has 0 arguments, expected f(x).";
        let rest = "No function matches the given name 'f'. Candidate functions:\n\t";
        let only = format!("{own} {rest}f(UserDefined)");
        assert_eq!(plan(&only), "f has 0 arguments, expected f(x)");
        let several = format!("{own} {rest}f(UserDefined)\n\tf(Int64)");
        assert!(plan(&several).starts_with("No function matches"), "{}", plan(&several));
    }

    #[test]
    fn syntax_errors_say_so() {
        let error = ParserError::ParserError("Expected: x, found: y at Line: 1".to_owned());
        let error = DataFusionError::SQL(Box::new(error), None);
        assert_eq!(readable(&error), "syntax error: expected: x, found: y at Line: 1");
    }
}
