//! The end of the process.

use std::io::Write;

/// Ends the process at once. After a cancel or an error a thread may still be inside a batch,
/// which cannot be interrupted; libtorch's destructors, which a plain exit runs, would crash it.
pub(crate) fn end(status: i32) -> ! {
    // A reader that has gone is no news by now.
    std::io::stdout().flush().ok();
    signal_hook::low_level::exit(status)
}
