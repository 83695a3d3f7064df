//! Orders sentences by how close they are in meaning to the first one:
//!
//! ```sh
//! cargo run -- PACKAGE 'a small house' 'the stock market fell' 'a little cottage'
//! ```
//!
//! PACKAGE is the folder of a model that makes embeddings, such as the demo's.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, StringArray};
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use forebay::prelude::*;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(package), Some(first)) = (arguments.next(), arguments.next()) else {
        let usage = "usage: embed PACKAGE SENTENCE…".to_owned();
        return Err(DataFusionError::Configuration(usage));
    };
    let sentences: ArrayRef = Arc::new(StringArray::from_iter_values(
        std::iter::once(first.clone()).chain(arguments),
    ));

    let forebay = ForebayContext::new()?;
    forebay.sql(&format!("CREATE TEMPORARY MODEL encoder LOCATION '{package}'")).await?;
    let batch = RecordBatch::try_from_iter([("sentence", sentences)])?;
    let embedded =
        forebay.session().read_batch(batch)?.ml_predict("encoder", &["sentence"], &[])?;
    forebay.session().register_table("embedded", embedded.into_view())?;

    let query = "SELECT b.sentence, round(1 - cosine_distance(a.embedding, b.embedding), 3) AS similarity
                 FROM embedded a CROSS JOIN embedded b WHERE a.sentence = $1
                 ORDER BY similarity DESC";
    let nearest = forebay.sql(query).await?.with_param_values(vec![ScalarValue::from(first)])?;
    nearest.show().await
}
