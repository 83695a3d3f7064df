//! Who calls, and what that one may do.
//!
//! - `login`: a user with a password, or a token; `users`: the file of them; `seal`: what the server
//!   signs, to know it again
//! - `rights`: roles, and the files that clients may name

pub(super) mod login;
pub(super) mod rights;
pub(super) mod seal;
pub(super) mod users;
