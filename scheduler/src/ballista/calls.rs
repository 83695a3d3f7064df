//! How Ballista calls others when connections are encrypted.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::EndpointOverrideFn;
use tonic::transport::Endpoint;

use crate::rpc::connection;
use crate::tls::Tls;

/// For how long a worker may take to answer: the scheduler does nothing else meanwhile.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// HTTP/2's windows for shuffle files, as large as Ballista's own.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// The scheduler gives tasks to workers.
pub(super) fn to_workers(tls: Tls) -> EndpointOverrideFn {
    Arc::new(move |plain| Ok(encrypted(&plain, &tls)?.timeout(ANSWER_LIMIT)))
}

/// A worker reads shuffle files of another one.
pub(super) fn for_shuffles(tls: Tls) -> EndpointOverrideFn {
    Arc::new(move |plain| {
        Ok(encrypted(&plain, &tls)?
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES))
    })
}

/// Ballista makes endpoints for `http`, whose scheme cannot be changed: this is another one.
fn encrypted(
    plain: &Endpoint,
    tls: &Tls,
) -> Result<Endpoint, Box<dyn std::error::Error + Send + Sync>> {
    let address = plain.uri().authority().map(ToString::to_string).unwrap_or_default();
    Ok(connection::endpoint(&address, Some(tls))?)
}
