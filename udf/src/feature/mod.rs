//! SQL functions for the work around models.

pub(crate) mod arguments;
mod download;
pub(crate) mod image;
mod row_hash;
mod tensor;
mod vector;

use std::sync::{Arc, LazyLock};

use datafusion::logical_expr::ScalarUDF;

/// All functions that Forebay adds to a session. Some replace DataFusion's own of the same names.
pub fn functions() -> Vec<Arc<ScalarUDF>> {
    static ALL: LazyLock<Vec<Arc<ScalarUDF>>> = LazyLock::new(|| {
        [
            vector::functions(),
            image::functions(),
            tensor::functions(),
            download::functions(),
            row_hash::functions(),
        ]
        .concat()
    });
    ALL.clone()
}
