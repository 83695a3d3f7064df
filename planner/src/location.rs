//! Where files are: a path, or a URL. In both `*`, `?` and `[…]` stand for several files.
//!
//! DataFusion understands patterns in paths alone, and takes what follows `?` and `#` in the URL of an
//! object for no part of its key. Here they are part of it, and what is no pattern is written as URLs
//! have it: `%3F` for a question mark. Addresses of web servers stay what they are everywhere.

use std::path::Path;

use datafusion::common::{Result, plan_err};
use datafusion::datasource::listing::ListingTableUrl;

/// What begins a pattern.
const IN_PATTERNS: [char; 3] = ['*', '?', '['];

/// The files that a text names.
///
/// # Errors
/// If it is not a URL, or not one that has files.
pub fn parse(text: &str) -> Result<ListingTableUrl> {
    let Some((scheme, rest)) = text.split_once("://").filter(|_| !Path::new(text).is_absolute())
    else {
        return ListingTableUrl::parse(text);
    };
    let is_web = ["http", "https"].iter().any(|web| scheme.eq_ignore_ascii_case(web));
    if is_web && rest.contains(['?', '#']) {
        return plan_err!(
            "'{text}': an address with a query (?) or a fragment (#) names no file of a web server; \
             url_download reads it"
        );
    }
    let pattern = if is_web { rest.find('*') } else { rest.find(IN_PATTERNS) };
    let Some(pattern) = pattern else {
        return ListingTableUrl::parse(format!("{scheme}://{}", without_meaning(rest)));
    };
    let Some(folder) = rest[..pattern].rfind('/') else {
        return plan_err!("'{text}': the name of a bucket or of a server cannot have a pattern");
    };
    let (folder, glob) = rest.split_at(folder + 1);
    let folder = ListingTableUrl::parse(format!("{scheme}://{}", without_meaning(folder)))?;
    folder.with_glob(&decoded(glob)?)
}

/// Encodes what a parser of URLs would cut off or change.
fn without_meaning(text: &str) -> String {
    let encoded = |c: char| match c {
        '#' | '\\' | ' ' => format!("%{:02X}", u32::from(c)),
        c if c.is_ascii_control() => format!("%{:02X}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(encoded).collect()
}

/// A pattern without `%20` and its like. What these stand for is meant as it is.
fn decoded(glob: &str) -> Result<String> {
    let (mut bytes, mut rest) = (vec![], glob);
    while let Some(at) = rest.find('%') {
        let (before, from) = rest.split_at(at);
        bytes.extend_from_slice(before.as_bytes());
        let byte = from.get(1..3).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if IN_PATTERNS.contains(&char::from(byte)) => {
                bytes.extend_from_slice(&[b'[', byte, b']']);
            }
            Some(byte) => bytes.push(byte),
            None => bytes.push(b'%'),
        }
        rest = &from[if byte.is_some() { 3 } else { 1 }..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    match String::from_utf8(bytes) {
        Ok(glob) => Ok(glob),
        Err(_) => plan_err!("'{glob}': what is encoded with % is not UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key or its folder, and the pattern.
    fn parts(text: &str) -> (String, Option<String>) {
        let found = parse(text).unwrap();
        (found.prefix().to_string(), found.get_glob().as_ref().map(|glob| glob.to_string()))
    }

    #[test]
    fn patterns_mean_the_same_in_urls() {
        let some = |folder: &str, glob: &str| (folder.to_owned(), Some(glob.to_owned()));
        assert_eq!(parts("s3://b/photos/*.jpg"), some("photos", "*.jpg"));
        assert_eq!(parts("s3://b/*"), some("", "*"));
        assert_eq!(parts("gs://b/a/2024-0[1-3]/x?.jpg"), some("a", "2024-0[1-3]/x?.jpg"));
        assert_eq!(parts("file:///tmp/a%20b/**/*.jpg"), some("tmp/a b", "**/*.jpg"));
        assert_eq!(parts("s3://b/a#b/%5Bx%20*%25"), some("a#b", "[[]x *%"));
        assert_eq!(parts("http://host/a/*.jpg"), some("a", "*.jpg"));
    }

    #[test]
    fn keys_are_whole() {
        for (text, key) in [
            ("s3://b/a b#c", "a b#c"),
            ("s3://b/a%3Fb%25c", "a?b%c"),
            ("s3://b/100%", "100%"),
            ("s3://b/a+b%2Bc", "a+b+c"),
            ("s3://b/ä\u{301}x ", "ä\u{301}x "),
            ("file:///tmp/a\\b", "tmp/a\\b"),
            ("http://host/a%20b", "a b"),
        ] {
            assert_eq!(parts(text), (key.to_owned(), None), "{text}");
        }
    }

    #[test]
    fn what_names_no_file_is_refused() {
        for (text, expected) in [
            ("http://host/a.jpg?size=2", "url_download reads it"),
            ("s3://b*", "the name of a bucket"),
            ("s3://b/*%FF", "not UTF-8"),
            // Not silently without it.
            ("s3://b/a\tb", "illegal"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
