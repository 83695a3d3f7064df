//! Text for models: `text_chunk` cuts documents into pieces that a model can take.
//!
//! - `tokens.rs`: what a text's tokens are, by a tokenizer or by the rule for words
//! - `chunk.rs`: where a text is cut, given its tokens: pure
//! - `reference.rs`: a model's tokenizer, named so that any process can load it
//! - `functions.rs`: the functions in SQL

mod chunk;
mod functions;
mod reference;
mod tokens;

pub use functions::{TEXT_CHUNK, TEXT_CHUNK_BY};
pub(super) use functions::{by_tokenizer, by_words};
pub use reference::TokenizerReference;
