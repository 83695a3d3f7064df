//! How Ballista calls others: in time, and encrypted if this process has a [`Tls`].

use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::EndpointOverrideFn;
use tonic::transport::Endpoint;

use crate::protocol::connection;
use crate::protocol::tls::Tls;

/// For how long a worker may take to answer: the scheduler does nothing else meanwhile.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// For how long another worker may take to be there, and how soon it is noticed that it is gone.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(3);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(7);

/// HTTP/2's windows for shuffle files, as large as Ballista's own.
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
const STREAM_WINDOW_BYTES: u32 = 16 << 20;

/// The scheduler gives tasks to workers.
pub(crate) fn to_workers(tls: Tls) -> EndpointOverrideFn {
    Arc::new(move |plain| Ok(encrypted(&plain, &tls)?.timeout(ANSWER_LIMIT)))
}

/// A worker reads shuffle files of another one. Ballista's own calls have no limits of time: a
/// worker behind a line that is cut without a word would be waited for until the job is cancelled.
pub(crate) fn for_shuffles(tls: Option<Tls>) -> EndpointOverrideFn {
    Arc::new(move |plain| {
        let endpoint = match &tls {
            None => plain,
            Some(tls) => encrypted(&plain, tls)?
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .initial_stream_window_size(STREAM_WINDOW_BYTES),
        };
        Ok(endpoint
            .tcp_nodelay(true)
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(KEEP_ALIVE_EVERY)
            .keep_alive_timeout(KEEP_ALIVE_LIMIT))
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
