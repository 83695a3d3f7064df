//! Flights, schemas and rows, as Flight SQL answers with them.

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::sql::ProstMessageExt;
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, IpcMessage, SchemaAsIpc, Ticket};
use futures::{StreamExt, TryStreamExt, stream};
use prost::Message;
use prost::bytes::Bytes;
use tonic::{Response, Status};

use super::delivery::Messages;
use super::encode::encode;
use crate::flight::status;

/// What a metadata request gives, with the request as its own ticket.
pub(in crate::flight) fn metadata_info<M: ProstMessageExt>(
    command: M,
    schema: &Schema,
    descriptor: FlightDescriptor,
) -> Result<Response<FlightInfo>, Status> {
    info(command.as_any().encode_to_vec().into(), schema, descriptor).map(Response::new)
}

/// A flight whose rows are read with this ticket.
pub(in crate::flight) fn info(
    ticket: Bytes,
    schema: &Schema,
    descriptor: FlightDescriptor,
) -> Result<FlightInfo, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket { ticket });
    let info = FlightInfo::new().try_with_schema(schema);
    let info = info.map_err(|error| Status::internal(error.to_string()))?;
    Ok(info.with_endpoint(endpoint).with_descriptor(descriptor))
}

/// Rows that are there already.
pub(in crate::flight) fn rows(batch: RecordBatch) -> Response<Messages> {
    let batches = stream::iter([Ok(batch.clone())]);
    let encoded = encode(batch.schema(), batches);
    Response::new(encoded.map_err(status::of_flight).boxed())
}

pub(in crate::flight) fn empty(schema: SchemaRef) -> Result<Response<Messages>, Status> {
    Ok(rows(RecordBatch::new_empty(schema)))
}

/// A schema as clients decode it.
pub(in crate::flight) fn encoded(schema: &Schema) -> Result<Bytes, Status> {
    let options = IpcWriteOptions::default();
    let message: Result<IpcMessage, _> = SchemaAsIpc::new(schema, &options).try_into();
    Ok(message.map_err(|error| Status::internal(error.to_string()))?.0)
}
