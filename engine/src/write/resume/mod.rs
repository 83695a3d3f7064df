//! Writes that go on where an earlier process ended.
//!
//! What such a write reads is cut into *pieces*: bytes of a file, of a size and a version. Each of its
//! parts covers some of them, writes files of its own, and leaves a record of both in the staging folder,
//! which stays. Whoever goes on keeps the parts whose pieces are still what they were and whose files are
//! whole, and computes what is missing: in other parts, if it likes. All become visible in one commit.
//!
//! Parts may also have rows of which something is made when all are there, such as groups: then their files are
//! staged, and what becomes visible is this. It is kept as a whole or not at all.
//!
//! ```text
//!  data/_forebay-7c0e…/resumable           all of this stays
//!                     /1f…/0, 1, …         the files of an attempt
//!                     /parts/3a…           a part that is complete: its pieces, its files
//!                     /rest                the same of what was made of all parts together
//!                     /moving              what a commit is moving, and from where
//!                     /committed           the commit stands
//! ```
//!
//! - `input`: files that are read, by what tells their versions apart; `pieces`: what is missing, and in which parts
//!   it is computed
//! - `record`: the records of parts
//! - `left`: what an earlier commit has come to; [`Remains`]: the folder, for whoever keeps its name

pub(super) mod input;
pub(super) mod left;
pub(super) mod pieces;
pub(super) mod record;
pub(super) mod remains;

pub use input::{Input, changes};
pub use pieces::{InputFile, Inputs, Piece, Reads};
pub use remains::{Looked, Overview, Remains};
