//! Rows as messages.

use arrow_flight::encode::{FlightDataEncoder, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use forebay_engine::weight;
use futures::stream::{self, Stream, TryStreamExt};

/// Messages are about so long at most. Many clients refuse 4 MiB, gRPC's own limit.
const MESSAGE_BYTES: usize = 2 << 20;

/// Messages with these rows, each as large as its rows: the encoder alone would go by the arrays
/// that a batch is a slice of, and would send the buffers of views whole with each message.
pub(in crate::flight) fn encode(
    schema: SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, FlightError>> + Send + 'static,
) -> FlightDataEncoder {
    let pieces = batches.map_ok(|batch| {
        let slices = weight::slices(batch, usize::MAX, MESSAGE_BYTES);
        stream::iter(slices.map(|slice| Ok(weight::compact(&slice)?)))
    });
    FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .with_max_flight_data_size(usize::MAX)
        .build(pieces.try_flatten())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_flight::decode::FlightRecordBatchStream;
    use datafusion::arrow::array::{ArrayRef, StringArray, StringViewArray};
    use datafusion::arrow::compute::concat_batches;

    use super::*;

    #[tokio::test]
    async fn messages_are_as_large_as_their_rows() {
        let text = |row: usize| format!("{row:06}{}", "x".repeat(1000));
        let views: ArrayRef = Arc::new(StringViewArray::from_iter_values((0..20_000).map(text)));
        let strings: ArrayRef = Arc::new(StringArray::from_iter_values((0..20_000).map(text)));
        for column in [views, strings] {
            let whole = RecordBatch::try_from_iter([("text", column)]).unwrap();
            // Slices of 5 MB, as operators give them.
            let slices: Vec<_> = (0..4).map(|at| Ok(whole.slice(at * 5000, 5000))).collect();
            let encoded = encode(whole.schema(), stream::iter(slices));
            let messages: Vec<_> = encoded.try_collect().await.unwrap();
            let sizes: Vec<_> = messages.iter().map(|message| message.data_body.len()).collect();
            assert!(sizes.len() < 16, "{sizes:?}");
            assert!(sizes.iter().all(|size| *size < 3 << 20), "{sizes:?}");
            let decoded = stream::iter(messages.into_iter().map(Ok));
            let decoded = FlightRecordBatchStream::new_from_flight_data(decoded);
            let batches: Vec<_> = decoded.try_collect().await.unwrap();
            assert_eq!(concat_batches(&whole.schema(), &batches).unwrap(), whole);
        }
    }
}
