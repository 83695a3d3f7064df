//! What every command says to a terminal.
//!
//! - `errors`: messages for people; `escape`: leaves nothing in a text that steers a terminal

pub(crate) mod errors;
pub(crate) mod escape;
