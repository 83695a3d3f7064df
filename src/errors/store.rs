//! Errors of object stores, which `object_store` wraps in its own.

use std::error::Error as StdError;
use std::fmt;

use object_store::Error;

/// The whole message of an error of a store: it names the URL and says what to do. Somewhere in the
/// causes of the error it stands for.
#[derive(Debug)]
pub(crate) struct Explained(pub(crate) String);

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Explained {}

/// The message of an error of a store, without the kind that `object_store` puts in front of it.
pub(crate) fn in_words(error: &Error) -> String {
    let explained = causes(error).find(|cause| cause.is::<Explained>());
    explained.map_or_else(|| error.to_string(), ToString::to_string)
}

/// An error, and what it comes from.
pub(crate) fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |cause| (*cause).source())
}
