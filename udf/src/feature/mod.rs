//! SQL functions for the work around models.

pub(crate) mod arguments;
mod audio;
mod docs;
mod download;
pub(crate) mod image;
mod octet_length;
mod row_hash;
mod tensor;
mod text;
mod vector;

use std::sync::{Arc, LazyLock};

use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::ScalarUDF;

pub use self::docs::{documentation, documented};
pub use self::image::JPEG_DECODER;
pub use self::tensor::{check_tensor, column_type_name, tensor_type_name};
pub use self::text::{TEXT_CHUNK, TEXT_CHUNK_BY, TokenizerReference};

/// All functions that Forebay adds to a session. Some replace DataFusion's own of the same names.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    static FUNCTIONS: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        [
            vector::functions(),
            image::functions(),
            tensor::functions(),
            audio::functions(),
            text::by_words(),
            download::functions(),
            row_hash::functions(),
            octet_length::functions(),
        ]
        .concat()
    });
    FUNCTIONS.clone()
}

/// What planning puts in the place of some of them, and plans that travel name. Not for sessions: their
/// arguments are not checked, and some read whatever package in `stores` they are told to.
pub fn planned_functions(stores: &Arc<RuntimeEnv>) -> Vec<Arc<ScalarUDF>> {
    [tensor::planned_functions(), text::by_tokenizer(stores)].concat()
}
