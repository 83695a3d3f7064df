//! What every operator here promises, checked while it runs in tests and debug builds: batches have
//! the declared schema, nothing comes after the end, and as many rows leave as came in.
//!
//! A release build compiles it to nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{RecordBatchStream, SendableRecordBatchStream};
use futures::{Stream, StreamExt};

/// Counts the rows of one execution of an operator, or of one partition of it.
#[derive(Debug)]
pub(crate) struct Ledger {
    operator: &'static str,
    rows_in: AtomicUsize,
    rows_out: AtomicUsize,
    /// Outputs that have not ended.
    open: AtomicUsize,
}

impl Ledger {
    /// For an operator with this many outputs.
    pub(crate) fn new(operator: &'static str, outputs: usize) -> Arc<Self> {
        let (rows_in, rows_out) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { operator, rows_in, rows_out, open: AtomicUsize::new(outputs) })
    }

    /// One of the operator's inputs.
    pub(crate) fn input(
        self: &Arc<Self>,
        stream: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        self.checked(stream, Side::Input)
    }

    /// One of the operator's outputs.
    pub(crate) fn output(
        self: &Arc<Self>,
        stream: SendableRecordBatchStream,
    ) -> SendableRecordBatchStream {
        self.checked(stream, Side::Output)
    }

    fn checked(
        self: &Arc<Self>,
        stream: SendableRecordBatchStream,
        side: Side,
    ) -> SendableRecordBatchStream {
        if !cfg!(debug_assertions) {
            return stream;
        }
        let ledger = Arc::clone(self);
        Box::pin(Checked { ledger, schema: stream.schema(), stream, side, state: State::Open })
    }

    fn check_rows(&self) -> Result<()> {
        if self.open.fetch_sub(1, Ordering::AcqRel) != 1 {
            return Ok(());
        }
        let (rows_in, rows_out) =
            (self.rows_in.load(Ordering::Relaxed), self.rows_out.load(Ordering::Relaxed));
        if rows_in == rows_out {
            Ok(())
        } else {
            internal_err!("{}: {rows_in} rows came and {rows_out} left", self.operator)
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    Failed,
    Ended,
}

struct Checked {
    ledger: Arc<Ledger>,
    schema: SchemaRef,
    stream: SendableRecordBatchStream,
    side: Side,
    state: State,
}

impl Checked {
    fn check(&mut self, batch: &RecordBatch) -> Result<()> {
        let operator = self.ledger.operator;
        if self.state != State::Open {
            return internal_err!("{operator}: a batch after the end or an error");
        }
        if self.side == Side::Output && batch.schema_ref() != &self.schema {
            let found = batch.schema_ref();
            return internal_err!("{operator}: declared {:?}, found {found:?}", self.schema);
        }
        let rows = match self.side {
            Side::Input => &self.ledger.rows_in,
            Side::Output => &self.ledger.rows_out,
        };
        rows.fetch_add(batch.num_rows(), Ordering::Relaxed);
        Ok(())
    }
}

impl Stream for Checked {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Poll::Ready(item) = self.stream.poll_next_unpin(cx) else { return Poll::Pending };
        Poll::Ready(match item {
            Some(Ok(batch)) => Some(self.check(&batch).map(|()| batch)),
            Some(Err(error)) => {
                self.state = State::Failed;
                Some(Err(error))
            }
            None => {
                let was = std::mem::replace(&mut self.state, State::Ended);
                let counts = self.side == Side::Output && was == State::Open;
                match counts.then(|| self.ledger.check_rows()) {
                    Some(Err(error)) => Some(Err(error)),
                    _ => None,
                }
            }
        })
    }
}

impl RecordBatchStream for Checked {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

    use super::*;
    use crate::testing::numbers;

    fn stream(batches: Vec<RecordBatch>, schema: &SchemaRef) -> SendableRecordBatchStream {
        let batches = futures::stream::iter(batches.into_iter().map(Ok));
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(schema), batches))
    }

    async fn error(rows_in: Vec<RecordBatch>, rows_out: Vec<RecordBatch>) -> Option<String> {
        let schema = numbers(0..0, |_| false).schema();
        let ledger = Ledger::new("TestExec", 1);
        let input = ledger.input(stream(rows_in, &schema));
        input.for_each(|item| async { item.map(drop).unwrap() }).await;
        let output = ledger.output(stream(rows_out, &schema)).collect::<Vec<_>>().await;
        output.into_iter().find_map(Result::err).map(|error| error.to_string())
    }

    #[tokio::test]
    async fn lost_rows_and_other_schemas_are_told() {
        let batch = numbers(0..3, |_| false);
        let halves = vec![batch.slice(0, 1), batch.slice(1, 2)];
        assert_eq!(error(vec![batch.clone()], halves).await, None);
        let lost = error(vec![batch.clone()], vec![batch.slice(0, 2)]).await.unwrap();
        assert!(lost.contains("TestExec: 3 rows came and 2 left"), "{lost}");
        let narrow = batch.project(&[0]).unwrap();
        let other = error(vec![batch], vec![narrow]).await.unwrap();
        assert!(other.contains("TestExec: declared"), "{other}");
    }
}
