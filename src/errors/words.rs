//! What DataFusion says in words alone: errors that it has printed into the text of others, and kinds that
//! no variant of its error tells.

use datafusion::error::DataFusionError;

/// What DataFusion says of `OPTIONS` about stores where nobody reads them.
const STORES: [&str; 2] =
    ["Could not find config namespace \"aws\"", "Could not find config namespace \"gcp\""];

/// All that DataFusion says when the last bytes of a file cannot be written.
const UNFINISHED: &str = "Error encountered while finalizing writes!";

/// What is said of a limit whose option is not named, and what to do.
const REMEDIES: [(&str, &str); 2] = [
    ("remain available for the total memory pool", "raise --memory-limit"),
    (
        "index overflow decoding byte array",
        "a batch of rows has more than 2 GiB of texts or bytes: SET datafusion.execution.batch_size to fewer rows",
    ),
];

/// How the signatures of a function begin that is called with none of them, and its own words.
const NO_FUNCTION: &str = "No function matches the given name";
const OWN_WORDS: &str = "user-defined coercion failed with: ";

/// What an option's error says.
pub(super) fn of_option(text: &str) -> String {
    if STORES.contains(&text) {
        return "a server reads with the keys of its own environment, or of its --init file; OPTIONS about a \
                store are for sessions that read it themselves"
            .to_owned();
    }
    plain(text)
}

/// Whether the last bytes of a file could not be written.
pub(super) fn is_of_unfinished(text: &str) -> bool {
    text.starts_with(UNFINISHED)
}

/// A message without the wrappings that were printed into it on the way.
pub(super) fn plain(text: &str) -> String {
    let end = text.find(DataFusionError::BACK_TRACE_SEP).unwrap_or(text.len());
    let text = about_arguments(&text[..end]).trim_end();
    // Whoever names no catalog and no schema need not read them.
    let text = text.replace("Error during planning: ", "").replace("'datafusion.public.", "'");
    let lacking = |(said, what): &&(&str, &str)| text.contains(said) && !text.contains(what);
    match REMEDIES.iter().find(lacking) {
        Some((_, what)) => format!("{text}; {what}"),
        None => text,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_within_messages_are_plain() {
        let text = "Internal error: Function 'f' failed … No function matches the given name 'f'.";
        assert_eq!(plain(text), "No function matches the given name 'f'.");
        assert_eq!(plain("table 'datafusion.public.x' not found"), "table 'x' not found");
    }

    #[test]
    fn a_limit_says_which_option_it_has() {
        use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
        let pool: std::sync::Arc<dyn MemoryPool> = std::sync::Arc::new(GreedyMemoryPool::new(9));
        let error = MemoryConsumer::new("sort").register(&pool).try_grow(10).unwrap_err();
        let DataFusionError::ResourcesExhausted(text) = error else { panic!("{error}") };
        let said = plain(&text);
        assert!(said.contains("for sort") && said.ends_with("; raise --memory-limit"), "{said}");
        assert_eq!(plain(&said), said);
        let large = plain("Parquet error: index overflow decoding byte array");
        assert!(large.ends_with("SET datafusion.execution.batch_size to fewer rows"), "{large}");
    }

    #[test]
    fn a_function_says_itself_what_it_expects() {
        let own = "Execution error: Function 'f' user-defined coercion failed with: \
                   Error during planning: f has 0 arguments, expected f(x).";
        let rest = "No function matches the given name 'f'. Candidate functions:\n\t";
        let only = format!("{own} {rest}f(UserDefined)");
        assert_eq!(plain(&only), "f has 0 arguments, expected f(x)");
        let several = format!("{own} {rest}f(UserDefined)\n\tf(Int64)");
        assert!(plain(&several).starts_with("No function matches"), "{}", plain(&several));
    }
}
