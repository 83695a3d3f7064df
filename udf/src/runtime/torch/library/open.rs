//! Opens libraries for the life of the process.

use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_NOW};

/// When the functions that a library calls are looked up.
#[derive(Clone, Copy)]
pub(super) enum Lookup {
    /// All while it is opened: one that is missing is an error, as it may be with the libraries
    /// that are found on a machine.
    AtOnce,
    /// Each at its first call, where a missing one would end the process: for what Forebay was
    /// built with. A model calls few of tens of thousands, so the first rows come sooner.
    AtCall,
}

/// Opens a library, and those that it needs, for all others to see and for the life of the process.
pub(super) fn open(path: &Path, lookup: Lookup) -> Result<&'static Library, String> {
    let flag = match lookup {
        Lookup::AtOnce => RTLD_NOW,
        Lookup::AtCall => RTLD_LAZY,
    };
    // SAFETY: runs the initializers of libtorch, which are meant for it. RTLD_GLOBAL because
    // libtorch_cuda finds its counterparts by symbol.
    let library = unsafe { Library::open(Some(path), flag | RTLD_GLOBAL) };
    // Never closed: libtorch's threads and statics do not survive that.
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|e| describe(&e))
}

/// The loader's own words; libloading hides them behind its own.
pub(super) fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}
