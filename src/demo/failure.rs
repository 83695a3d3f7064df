//! Why a download failed, and whether another attempt can succeed.

use std::env;
use std::io;

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::StatusCode;
use url::Url;

/// Why one of several attempts to download something failed.
#[derive(Debug, Default)]
pub(super) struct Failure {
    pub(super) problem: String,
    pub(super) may_pass: bool,
    /// Whether no connection came about; then the message says what proxy was tried.
    pub(super) is_unreachable: bool,
    /// It is the disk that failed.
    pub(super) disk: Option<io::Error>,
}

impl Failure {
    pub(super) fn passing(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), may_pass: true, ..Self::default() }
    }

    pub(super) fn lasting(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), ..Self::default() }
    }

    pub(super) fn of_status(status: StatusCode) -> Self {
        let may_pass = status.is_server_error() || matches!(status.as_u16(), 408 | 429);
        Self { may_pass, ..Self::lasting(format!("the server says {status}")) }
    }

    pub(super) fn of_disk(error: io::Error) -> Self {
        Self { disk: Some(error), ..Self::default() }
    }
}

impl From<reqwest::Error> for Failure {
    fn from(error: reqwest::Error) -> Self {
        // The innermost reason; what is around it names the URL again.
        let mut reason: &dyn std::error::Error = &error;
        while let Some(source) = reason.source() {
            reason = source;
        }
        let kind = if error.is_timeout() { "it took too long: " } else { "" };
        Self {
            problem: format!("{kind}{reason}"),
            may_pass: !error.is_builder(),
            is_unreachable: error.is_connect(),
            disk: None,
        }
    }
}

/// `the proxy is http://proxy:3128/, which HTTPS_PROXY names`, or that there is none for this URL.
pub(super) fn proxy(url: &Url) -> String {
    // What the client itself asks; it knows NO_PROXY too.
    let is_used =
        url.as_str().parse().is_ok_and(|uri| Matcher::from_env().intercept(&uri).is_some());
    let scheme = url.scheme();
    let lower = format!("{scheme}_proxy");
    let upper = lower.to_uppercase();
    let named = [&*upper, &lower, "ALL_PROXY", "all_proxy"].into_iter().find_map(|name| {
        let value = env::var(name).ok().filter(|value| !value.is_empty())?;
        let shown = shown_proxy(&value);
        Some(format!("the proxy is {shown}, which {name} names"))
    });
    match named.filter(|_| is_used) {
        Some(named) => named,
        None => format!("no proxy is set for it; if there must be one, set {upper}"),
    }
}

/// A proxy as it was named, which may lack the scheme, without what is secret in it.
fn shown_proxy(value: &str) -> String {
    let named = |value: &str| Url::parse(value).ok().filter(Url::has_host);
    match named(value).or_else(|| named(&format!("http://{value}"))) {
        Some(url) => shown(&url),
        None => "not a URL".to_owned(),
    }
}

/// A URL without what is secret in it.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Neither fails for a URL with a host.
    url.set_username("").ok();
    url.set_password(None).ok();
    url.set_query(None);
    url.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let url = Url::parse("https://me:secret@index.example/a?token=secret").unwrap();
        assert_eq!(shown(&url), "https://index.example/a");
        for proxy in ["me:secret@proxy:3128", "http://me:secret@proxy:3128", "me@proxy:3128"] {
            assert_eq!(shown_proxy(proxy), "http://proxy:3128/");
        }
        assert_eq!(shown_proxy("socks5://me:secret@proxy:1080"), "socks5://proxy:1080");
        assert_eq!(shown_proxy("me:secret@"), "not a URL");
    }
}
