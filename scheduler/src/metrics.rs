//! Figures for Prometheus: text over HTTP, made anew for each reader from what is there anyway.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use prometheus::core::Collector;
use prometheus::{CounterVec, GaugeVec, Opts, Registry, TEXT_FORMAT, TextEncoder};
use tokio::net::TcpListener;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::protocol::connection;
use crate::protocol::tls::Tls;

/// All figures of one moment.
#[derive(Debug, Default)]
pub(crate) struct Page(Registry);

impl Page {
    /// A figure that rises and falls.
    pub(crate) fn gauge(&self, name: &str, help: &str, value: f64) -> Result<()> {
        self.gauges(name, help, "", &[("", value)])
    }

    /// One for each value of a label.
    pub(crate) fn gauges<L: AsRef<str>>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(L, f64)],
    ) -> Result<()> {
        let labels = [label].into_iter().filter(|label| !label.is_empty()).collect::<Vec<_>>();
        let gauges = GaugeVec::new(Opts::new(name, help), &labels).map_err(failed)?;
        for (of, value) in values {
            gauges.with_label_values(&[of.as_ref()][..labels.len()]).set(*value);
        }
        self.add(gauges)
    }

    /// Figures that only rise, one for each value of a label.
    pub(crate) fn counters<L: AsRef<str>>(
        &self,
        name: &str,
        help: &str,
        label: &str,
        values: &[(L, f64)],
    ) -> Result<()> {
        let labels = [label].into_iter().filter(|label| !label.is_empty()).collect::<Vec<_>>();
        let counters = CounterVec::new(Opts::new(name, help), &labels).map_err(failed)?;
        for (of, value) in values {
            counters.with_label_values(&[of.as_ref()][..labels.len()]).inc_by(*value);
        }
        self.add(counters)
    }

    fn add(&self, figures: impl Collector + 'static) -> Result<()> {
        self.0.register(Box::new(figures)).map_err(failed)
    }

    fn text(&self) -> Result<String> {
        TextEncoder::new().encode_to_string(&self.0.gather()).map_err(failed)
    }
}

fn failed(error: prometheus::Error) -> DataFusionError {
    exec_datafusion_err!("figures for Prometheus: {error}")
}

/// Serves figures as long as it is held.
pub struct MetricsServer {
    address: SocketAddr,
    _serving: SpawnedTask<()>,
}

impl MetricsServer {
    /// At `http://ADDRESS/metrics`, or `https` with `tls`; port 0 takes a free one.
    pub(crate) async fn serve(
        address: SocketAddr,
        tls: Option<Tls>,
        fill: impl Fn(&Page) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| exec_datafusion_err!("cannot listen on {address}: {error}"))?;
        let address = listener.local_addr()?;
        let fill = Arc::new(fill);
        let answer = move || {
            let page = Page::default();
            let text = fill(&page).and_then(|()| page.text());
            let text =
                text.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.strip_backtrace()));
            std::future::ready(([(CONTENT_TYPE, TEXT_FORMAT)], text))
        };
        let routes = Routes::from(Router::new().route("/metrics", get(answer)));
        let routes = Server::builder().accept_http1(true).add_routes(routes);
        let server = connection::serve(routes, listener, tls);
        let serving = SpawnedTask::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!("the port for metrics closed: {error}");
            }
        });
        Ok(Self { address, _serving: serving })
    }

    /// Where they are served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for MetricsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsServer").field("address", &self.address).finish_non_exhaustive()
    }
}
