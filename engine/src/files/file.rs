//! A file that is a row.

use datafusion::execution::object_store::ObjectStoreUrl;
use object_store::path::Path;

/// A file that a listing found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The store that it is in.
    pub store: ObjectStoreUrl,
    /// Where it is in the store.
    pub path: Path,
    /// In bytes, when it was listed. It may have grown since.
    pub size: u64,
    /// When it was written, in microseconds since 1970.
    pub modified_us: i64,
    /// What its store calls this content, if that is known: where a query is planned.
    pub tag: Option<String>,
}

impl File {
    /// What `read_files` finds this file under: what would mean something else in a URL is encoded.
    pub(super) fn url(&self) -> String {
        let mut url = self.store.as_str().to_owned();
        for c in self.path.as_ref().chars() {
            match c {
                '%' | '*' | '?' | '[' | '#' | '\\' | '\0'..='\x1f' | '\x7f' => {
                    url.push_str(&format!("%{:02X}", u32::from(c)));
                }
                c => url.push(c),
            }
        }
        url
    }
}

/// What becomes of a file that is listed and cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnreadable {
    /// The query ends with the reason.
    Fail,
    /// Its bytes are NULL.
    Null,
}
