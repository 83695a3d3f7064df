//! What this binary was made of, for `forebay --version` and `forebay doctor`.
//!
//! The commit is looked up by a macro, here and not in a build script: after a commit cargo then
//! builds the binary anew, and not the library and its tests.

use std::fmt::Write as _;
use std::sync::LazyLock;

use forebay_udf::runtime::onnx::ONNXRUNTIME_VERSION;
use forebay_udf::runtime::torch::LIBTORCH_VERSION;
use git_version::git_version;

/// In an archive that git made this is the commit's name (`.gitattributes`), in a checkout it is
/// what stands here.
const ARCHIVED: &str = "$Format:%H$";
/// What git says, without any tag: all digits of the commit, and whether files differ from it.
const CHECKED_OUT: &str = git_version!(
    args = ["--always", "--exclude=*", "--abbrev=40", "--dirty= (modified)"],
    fallback = "unknown: built without git"
);

/// Names and values, without the version itself.
pub(crate) fn parts() -> [(&'static str, &'static str); 7] {
    [
        ("commit", commit(ARCHIVED, CHECKED_OUT)),
        ("profile", if cfg!(debug_assertions) { "dev" } else { "release" }),
        ("DataFusion", datafusion::DATAFUSION_VERSION),
        ("Ballista", ballista_core::BALLISTA_VERSION),
        ("arrow", arrow::ARROW_VERSION),
        ("libtorch", LIBTORCH_VERSION),
        ("onnxruntime", ONNXRUNTIME_VERSION),
    ]
}

/// What `--version` prints behind the program's name.
pub(crate) fn long() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut text = env!("CARGO_PKG_VERSION").to_owned();
        for (name, value) in parts() {
            // Writing into a string does not fail.
            write!(text, "\n{name:<12}{value}").ok();
        }
        text
    });
    &TEXT
}

/// An archive knows its commit; whatever repository it was unpacked in does not.
fn commit(archived: &'static str, checked_out: &'static str) -> &'static str {
    if archived.starts_with('$') { checked_out } else { archived }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_names_its_own_commit() {
        assert_eq!(commit("$Format:%H$", "1234 (modified)"), "1234 (modified)");
        assert_eq!(commit("abcd", "unknown"), "abcd");
    }
}
