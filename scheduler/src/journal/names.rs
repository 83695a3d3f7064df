//! How files are called: `<term>-<number>.journal`, and `<term>.term`.

const JOURNAL: &str = ".journal";
const CLAIM: &str = ".term";

/// The journal that is the `number`th of a term.
pub(super) fn journal(term: u64, number: u64) -> String {
    format!("{term:016x}-{number:08}{JOURNAL}")
}

/// The claim of a term.
pub(super) fn claim(term: u64) -> String {
    format!("{term:016x}{CLAIM}")
}

pub(super) fn is_journal(name: &str) -> bool {
    name.ends_with(JOURNAL)
}

/// Whether a file is a journal or a claim, or was to become one.
pub(super) fn is_ours(name: &str) -> bool {
    name.contains(JOURNAL) || name.ends_with(CLAIM)
}

fn term_of_journal(name: &str) -> Option<u64> {
    let (term, _) = name.strip_suffix(JOURNAL)?.split_once('-')?;
    u64::from_str_radix(term, 16).ok()
}

fn term_of_claim(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_suffix(CLAIM)?, 16).ok()
}

/// The journal that counts.
pub(super) fn newest_journal(names: &[String]) -> Option<&str> {
    names.iter().map(String::as_str).filter(|name| is_journal(name)).max()
}

/// The term of that.
pub(super) fn newest_journals_term(names: &[String]) -> Option<u64> {
    newest_journal(names).and_then(term_of_journal)
}

/// The claim that counts.
pub(super) fn newest_claim(names: &[String]) -> Option<u64> {
    names.iter().filter_map(|name| term_of_claim(name)).max()
}

/// The term after all that there have been.
pub(super) fn next_term(names: &[String]) -> u64 {
    let journals = names.iter().filter_map(|name| term_of_journal(name));
    journals.chain(newest_claim(names)).max().unwrap_or(0) + 1
}
