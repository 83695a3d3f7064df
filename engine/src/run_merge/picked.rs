//! Rows that were picked of batches, which are put together when there are enough of them.

use std::sync::Arc;

use arrow::array::{Array, RecordBatch, RecordBatchOptions};
use arrow::compute::interleave;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::common::utils::memory::get_record_batch_memory_size;
use datafusion::common::{Result, internal_err};
use datafusion::execution::memory_pool::MemoryReservation;

/// Memory: each batch, reserved, until the rows that were picked of it are taken; and what is taken.
#[derive(Debug)]
pub(super) struct Picked {
    schema: SchemaRef,
    batches: Vec<Held>,
    /// Batch and row, in their order.
    rows: Vec<(usize, usize)>,
    /// Of each input, its batch; none if it has ended.
    current: Vec<Option<usize>>,
}

#[derive(Debug)]
struct Held {
    batch: RecordBatch,
    input: usize,
    _reserved: MemoryReservation,
}

impl Picked {
    pub(super) fn new(schema: SchemaRef, inputs: usize, batch_size: usize) -> Self {
        let rows = Vec::with_capacity(batch_size);
        Self { schema, batches: vec![], rows, current: vec![None; inputs] }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// The next batch of an input. All rows of the one before have been picked.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(super) fn hold(
        &mut self,
        input: usize,
        batch: RecordBatch,
        memory: &MemoryReservation,
    ) -> Result<()> {
        let reserved = memory.new_empty();
        reserved.try_grow(get_record_batch_memory_size(&batch))?;
        self.current[input] = Some(self.batches.len());
        self.batches.push(Held { batch, input, _reserved: reserved });
        Ok(())
    }

    /// All rows of an input have been picked.
    pub(super) fn end(&mut self, input: usize) {
        self.current[input] = None;
    }

    /// A row of an input's batch.
    ///
    /// # Errors
    /// If it has none.
    pub(super) fn pick(&mut self, input: usize, row: usize) -> Result<()> {
        let Some(batch) = self.current[input] else {
            return internal_err!("row {row} of input {input} of a merge, which has ended");
        };
        self.rows.push((batch, row));
        Ok(())
    }

    /// What was picked; none if nothing was. Of texts that are too many for one column, the first half, or less.
    ///
    /// # Errors
    /// If rows cannot be put together.
    pub(super) fn take(&mut self) -> Result<Option<RecordBatch>> {
        let mut count = self.rows.len();
        if count == 0 {
            return Ok(None);
        }
        let batch = loop {
            match self.together(count) {
                Err(ArrowError::OffsetOverflowError(_)) if count > 1 => count /= 2,
                other => break other?,
            }
        };
        self.rows.drain(..count);
        if self.rows.is_empty() {
            self.forget();
        }
        Ok(Some(batch))
    }

    fn together(&self, count: usize) -> Result<RecordBatch, ArrowError> {
        let column = |at: usize| {
            let columns = self.batches.iter().map(|held| held.batch.column(at).as_ref());
            interleave(&columns.collect::<Vec<&dyn Array>>(), &self.rows[..count])
        };
        let columns = (0..self.schema.fields().len()).map(column).collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
    }

    /// Batches of which all rows are taken.
    fn forget(&mut self) {
        for (at, held) in std::mem::take(&mut self.batches).into_iter().enumerate() {
            let current = &mut self.current[held.input];
            if *current == Some(at) {
                *current = Some(self.batches.len());
                self.batches.push(held);
            }
        }
    }
}
