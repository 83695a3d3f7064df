//! How Ballista's scheduler calls workers: in time, and encrypted.

use std::sync::Arc;
use std::time::Duration;

use ballista_core::extension::EndpointOverrideFn;

use crate::protocol::connection;
use crate::protocol::tls::Tls;

/// For how long a worker may take to answer: the scheduler does nothing else meanwhile.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The scheduler gives tasks to workers. Ballista makes endpoints for `http`, whose scheme cannot be changed: these
/// are others.
pub(crate) fn to_workers(tls: Tls) -> EndpointOverrideFn {
    Arc::new(move |plain| {
        let address = plain.uri().authority().map(ToString::to_string).unwrap_or_default();
        Ok(connection::endpoint(&address, Some(&tls))?.timeout(ANSWER_LIMIT))
    })
}
