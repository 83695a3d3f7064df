//! The wire form of writes: the sink that DataFusion planned, and what it does not say.

use std::sync::Arc;

use datafusion::common::file_options::json_writer::JsonWriterOptions;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::physical_plan::ExecutionPlan;
use object_store::path::Path;
use prost::Message;

use super::commit::CommitExec;
use super::delta::DeltaWrite;
use super::exec::WriteExec;
use super::format::Format;
use super::staging::Staging;
use super::target::Target;
use crate::wire::{ExprCodec, SortKey, ordering, sort_keys};

/// DataFusion's part of a wire form: its sinks as bytes, and back.
pub trait SinkCodec {
    /// A sink as bytes.
    ///
    /// # Errors
    /// If it has no wire form.
    fn encode_sink(&self, sink: Arc<dyn DataSink>) -> Result<Vec<u8>>;

    /// The sink of these bytes, in an operator.
    ///
    /// # Errors
    /// If the bytes are none.
    fn decode_sink(&self, bytes: &[u8]) -> Result<Arc<dyn ExecutionPlan>>;
}

/// A [`WriteExec`] or a [`CommitExec`] without its input.
#[derive(Clone, PartialEq, Message)]
pub struct Write {
    #[prost(bytes = "vec", tag = "1")]
    sink: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    order: Vec<SortKey>,
    #[prost(uint64, tag = "3")]
    file_bytes: u64,
    #[prost(bool, tag = "4")]
    is_new: bool,
    /// As the statement names it.
    #[prost(string, tag = "5")]
    original_url: String,
    #[prost(string, optional, tag = "6")]
    staging: Option<String>,
    /// The sink is another's, which has a wire form, and says where; what it writes is Arrow IPC.
    #[prost(bool, tag = "7")]
    is_arrow: bool,
    #[prost(message, optional, tag = "8")]
    delta: Option<DeltaWrite>,
    /// On a cluster, part of the tasks that make the rows.
    #[prost(bool, tag = "9")]
    is_direct: bool,
}

impl Write {
    fn of(
        target: &Target,
        staging: Option<&Staging>,
        sinks: &dyn SinkCodec,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let is_arrow = matches!(target.format, Format::Arrow);
        let format = if is_arrow { stand_in() } else { target.format.clone() };
        let sink = format.sink(target.config.clone(), target.order.as_ref());
        Ok(Self {
            sink: sinks.encode_sink(sink)?,
            order: sort_keys(target.order.as_ref(), exprs)?,
            file_bytes: target.file_bytes,
            is_new: target.is_new,
            original_url: target.config.original_url.clone(),
            staging: staging.map(|staging| staging.folder().to_string()),
            is_arrow,
            delta: target.delta.clone(),
            is_direct: false,
        })
    }

    fn target(&self, sinks: &dyn SinkCodec, exprs: &dyn ExprCodec) -> Result<Target> {
        let sink = sinks.decode_sink(&self.sink)?;
        let target = sink.downcast_ref::<DataSinkExec>();
        let target = target.and_then(|sink| Target::of(sink, self.file_bytes));
        let Some(mut target) = target else { return exec_err!("it writes no files") };
        target.order = ordering(&self.order, target.schema(), exprs)?;
        if self.is_arrow {
            target.format = Format::Arrow;
        }
        target.is_new = self.is_new;
        target.delta.clone_from(&self.delta);
        target.config.original_url.clone_from(&self.original_url);
        Ok(target)
    }
}

/// A format whose sink has a wire form.
fn stand_in() -> Format {
    Format::Json(Box::new(JsonWriterOptions::new(CompressionTypeVariant::UNCOMPRESSED)))
}

impl WriteExec {
    /// All but the input.
    ///
    /// # Errors
    /// If its sink or an expression has no wire form.
    pub fn to_wire(&self, sinks: &dyn SinkCodec, exprs: &dyn ExprCodec) -> Result<Write> {
        let write = Write::of(self.target(), self.staging(), sinks, exprs)?;
        Ok(Write { is_direct: self.is_direct(), ..write })
    }

    /// The operator of a message, over `input`.
    ///
    /// # Errors
    /// If it writes no files, or does not fit the input.
    pub fn from_wire(
        message: &Write,
        input: Arc<dyn ExecutionPlan>,
        sinks: &dyn SinkCodec,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let target = message.target(sinks, exprs)?;
        if target.schema().fields().len() != input.schema().fields().len() {
            return exec_err!(
                "it writes {} columns, its input has {}",
                target.schema().fields().len(),
                input.schema().fields().len()
            );
        }
        let folder = message.staging.as_ref().map(Path::parse).transpose();
        let folder = folder.map_err(|error| exec_datafusion_err!("its staging folder: {error}"))?;
        let staging = folder.map(|folder| Staging::at(folder, target.is_local()));
        let write = Self::new(input, Arc::new(target)).with_staging(staging);
        Ok(write.with_direct(message.is_direct))
    }
}

impl CommitExec {
    /// All but the input.
    ///
    /// # Errors
    /// If its sink or an expression has no wire form.
    pub fn to_wire(&self, sinks: &dyn SinkCodec, exprs: &dyn ExprCodec) -> Result<Write> {
        Write::of(self.target(), None, sinks, exprs)
    }

    /// The operator of a message, over `input`.
    ///
    /// # Errors
    /// If it writes no files.
    pub fn from_wire(
        message: &Write,
        input: Arc<dyn ExecutionPlan>,
        sinks: &dyn SinkCodec,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        Ok(Self::new(input, Arc::new(message.target(sinks, exprs)?)))
    }
}
