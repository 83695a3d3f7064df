//! What needs Rust to test: the DataFrame API, real models, damage, cancellation, the code itself.
//! One binary, because each one links all of DataFusion.

mod api {
    mod dataframe;
    mod failures;
    mod minilm;
    mod tidy;
}
