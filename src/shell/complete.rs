//! What could come next in a line. Pure: text and names in, candidates out.

use super::names::Names;

/// The candidates for the word that ends at the cursor, which starts at `start`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidates {
    pub(super) start: usize,
    pub(super) words: Vec<String>,
}

const KEYWORDS: &[&str] = &[
    "ALTER",
    "ANALYZE",
    "AND",
    "ANEW",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CANCEL",
    "CASE",
    "CAST",
    "COMMENT",
    "COPY",
    "CREATE",
    "CROSS",
    "CSV",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DESCRIPTOR",
    "DISTINCT",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "EXTERNAL",
    "FALSE",
    "FORGET",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "IF",
    "IN",
    "INNER",
    "INPUT",
    "INSERT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOB",
    "JOBS",
    "JOIN",
    "JSON",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOCATION",
    "MAP",
    "MODEL",
    "MODELS",
    "NOT",
    "NULL",
    "OFFSET",
    "ON",
    "OPTIONS",
    "OR",
    "ORDER",
    "OUTER",
    "OUTPUT",
    "OVER",
    "PARQUET",
    "PARTITION",
    "REPLACE",
    "RESUME",
    "RIGHT",
    "SELECT",
    "SET",
    "SHOW",
    "STORED",
    "SUBMIT",
    "TABLE",
    "TABLES",
    "TEMPORARY",
    "THEN",
    "TO",
    "TRUE",
    "UNION",
    "UNNEST",
    "USING",
    "VALUES",
    "VERSION",
    "VIEW",
    "WAIT",
    "WHEN",
    "WHERE",
    "WITH",
];

/// Keywords after which a table comes.
const BEFORE_TABLE: &[&str] = &["FROM", "JOIN", "INTO", "TABLE", "DESCRIBE", "COPY"];

/// Completes the SQL before the cursor.
pub(super) fn complete(before: &str, names: &Names) -> Candidates {
    let start = before.rfind(|c: char| !is_word(c)).map_or(0, |at| at + char_len(before, at));
    let word = &before[start..];
    let previous = previous_word(&before[..start]).to_uppercase();
    if let Some(at) = word.rfind('.')
        && previous != "SET"
        && let Some(columns) = qualified(before, &word[..at], names)
    {
        let words = matching(&word[at + 1..], columns.into_iter());
        return Candidates { start: start + at + 1, words };
    }
    let tables = || names.tables.keys().map(String::as_str);
    let models = || names.models.iter().map(String::as_str);
    let words = match previous.as_str() {
        "MODEL" => matching(word, models()),
        "SET" => matching(word, names.settings.iter().map(String::as_str)),
        previous if BEFORE_TABLE.contains(&previous) => {
            let forms = ["ml_predict("].into_iter().filter(|_| previous != "DESCRIBE");
            matching(word, tables().chain(forms))
        }
        _ if word.is_empty() => vec![],
        _ => {
            let mut words = matching(word, mentioned_columns(before, names).into_iter());
            words.extend(matching(word, tables()));
            words.extend(matching(word, names.functions.iter().map(String::as_str)));
            words.extend(keywords(word));
            words.dedup();
            words
        }
    };
    Candidates { start, words }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(0, char::len_utf8)
}

fn previous_word(text: &str) -> &str {
    let text = text.trim_end();
    // After `(` or `,` nothing is known, except that `ml_predict(TABLE` names the table.
    let start = text.rfind(|c: char| !is_word(c)).map_or(0, |at| at + char_len(text, at));
    &text[start..]
}

/// Columns of the table before a dot; of all mentioned tables if it is an alias.
fn qualified<'a>(text: &str, qualifier: &str, names: &'a Names) -> Option<Vec<&'a str>> {
    if let Some(columns) = names.tables.get(qualifier) {
        return Some(columns.iter().map(String::as_str).collect());
    }
    let is_schema = names.tables.keys().any(|name| name.starts_with(&format!("{qualifier}.")));
    (!is_schema).then(|| mentioned_columns(text, names))
}

/// Columns of the tables that the text names, or of all if it names none yet.
fn mentioned_columns<'a>(text: &str, names: &'a Names) -> Vec<&'a str> {
    let is_mentioned =
        |table: &str| text.split(|c: char| !is_word(c)).any(|w| w.eq_ignore_ascii_case(table));
    let mentioned: Vec<_> = names.tables.iter().filter(|(table, _)| is_mentioned(table)).collect();
    let all = names.tables.iter().collect();
    let tables = if mentioned.is_empty() { all } else { mentioned };
    let mut columns: Vec<&str> =
        tables.into_iter().flat_map(|(_, columns)| columns.iter().map(String::as_str)).collect();
    columns.sort_unstable();
    columns.dedup();
    columns
}

fn matching<'a>(prefix: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let prefix = prefix.to_lowercase();
    names.filter(|name| name.to_lowercase().starts_with(&prefix)).map(quoted).collect()
}

/// As SQL must write it: names with capitals or other characters need quotes.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_.(".contains(c);
    if name.chars().all(plain) { name.to_owned() } else { format!("\"{name}\"") }
}

/// In the case in which the word was begun.
fn keywords(word: &str) -> Vec<String> {
    let upper = word.to_uppercase();
    let is_upper = word.starts_with(char::is_uppercase);
    let found = KEYWORDS.iter().filter(|keyword| keyword.starts_with(&upper));
    found.map(|k| if is_upper { (*k).to_owned() } else { k.to_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(before: &str) -> String {
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let names = Names {
            tables: [
                ("reviews".to_owned(), columns(&["id", "text", "Stars"])),
                ("photos".to_owned(), columns(&["id", "image"])),
                ("shop.orders".to_owned(), columns(&["total"])),
            ]
            .into(),
            models: vec!["minilm".to_owned(), "toxic".to_owned()],
            functions: ["ml_predict".to_owned(), "sum".to_owned()].into(),
            settings: vec!["forebay.byte_budget".to_owned()],
        };
        complete(before, &names).words.join(" ")
    }

    #[test]
    fn what_comes_next_depends_on_what_came_before() {
        assert_eq!(completed("SEL"), "SELECT");
        assert_eq!(completed("sel"), "select");
        assert_eq!(completed("SELECT * FROM re"), "reviews");
        assert_eq!(completed("SELECT * FROM "), "photos reviews shop.orders ml_predict(");
        assert_eq!(completed("SELECT ml_predict(MODEL "), "minilm toxic");
        assert_eq!(completed("DROP MODEL to"), "toxic");
        assert_eq!(completed("SELECT * FROM ml_predict(TABLE ph"), "photos");
        assert_eq!(completed("SET forebay.b"), "forebay.byte_budget");
        assert_eq!(completed(""), "");
    }

    #[test]
    fn columns_are_those_of_the_tables_in_sight() {
        assert_eq!(
            completed("SELECT * FROM photos WHERE i"),
            "id image if in inner input insert intersect interval into is"
        );
        assert_eq!(completed("SELECT reviews.t"), "text");
        assert_eq!(completed("SELECT * FROM photos p WHERE p.im"), "image");
        assert_eq!(completed("SELECT * FROM reviews WHERE sta"), "\"Stars\"");
        assert_eq!(completed("SELECT * FROM shop.o"), "shop.orders");
        assert_eq!(completed("SELECT shop.orders."), "total");
    }
}
