//! What went wrong at a store, in words: the URL, what the server said, and what to do.

use std::error::Error as StdError;
use std::fmt;

use datafusion::error::DataFusionError;
use object_store::Error;
use object_store::client::HttpError;
use object_store::path::Path;

use super::place::{Kind, Place};
use crate::errors::readable;
use crate::errors::store::{Explained, causes};

/// Of what a server said.
const SAID_MAX: usize = 300;

impl Place {
    /// The error of a request for `path`, explained; of the kind that its status tells.
    pub(super) fn explain(&self, path: Option<&Path>, error: Error) -> Error {
        let is_explained = causes(&error).any(<dyn StdError>::is::<Explained>);
        if is_explained || matches!(error, Error::NotImplemented { .. } | Error::NotModified { .. })
        {
            return error;
        }
        tracing::debug!("{}: {error}", self.url);
        let path = path.map(ToString::to_string).unwrap_or_default();
        let answer = Answer::of(&error);
        let problem = self.problem(&error, &answer);
        let source = Box::new(Explained(format!("{}{path}: {problem}", self.url)));
        match (error, answer.status()) {
            (Error::NotFound { .. }, _) | (_, Some(404)) => Error::NotFound { path, source },
            (Error::PermissionDenied { .. }, _) | (_, Some(403)) => {
                Error::PermissionDenied { path, source }
            }
            (Error::Unauthenticated { .. }, _) | (_, Some(401)) => {
                Error::Unauthenticated { path, source }
            }
            (Error::AlreadyExists { .. }, _) => Error::AlreadyExists { path, source },
            (Error::Precondition { .. }, _) => Error::Precondition { path, source },
            (Error::NotSupported { .. } | Error::InvalidPath { .. }, _) => {
                Error::NotSupported { source }
            }
            _ => Error::Generic { store: self.kind.name(), source },
        }
    }

    /// Why a store cannot be opened.
    pub(super) fn not_opened(&self, error: DataFusionError) -> Error {
        let problem = match error {
            DataFusionError::ObjectStore(error) => {
                let (keys, address) = (self.kind.about_keys(), self.kind.about_address());
                format!("it cannot be opened: {}; {keys}; {address}", Answer::of(&error))
            }
            error => readable(&error),
        };
        let source = Box::new(Explained(format!("{}: {problem}", self.url)));
        Error::Generic { store: self.kind.name(), source }
    }

    fn problem(&self, error: &Error, answer: &Answer) -> String {
        let kind = self.kind;
        match (answer, answer.status()) {
            (Answer::None(why), _) => format!("no answer: {why}; {}", kind.about_address()),
            (Answer::Status { code: Some(code), .. }, _) if code == "NoSuchBucket" => {
                "there is no such bucket; check its name, and AWS_ENDPOINT_URL if the server is not \
                 Amazon's"
                    .to_owned()
            }
            (_, Some(404)) if kind == Kind::Web => {
                "there is no such file (404 Not Found)".to_owned()
            }
            (_, Some(404)) => "there is no such object".to_owned(),
            (answer, Some(401 | 403)) => format!("access denied: {answer}; {}", kind.about_keys()),
            (Answer::Status { status, .. }, Some(301 | 307)) if kind == Kind::S3 => format!(
                "the bucket is in another region ({status}); set AWS_REGION, or OPTIONS ('aws.region' …) \
                 of a table"
            ),
            (Answer::Status { .. }, _) => format!("the server says {answer}"),
            (Answer::Other(_), _) if matches!(error, Error::NotFound { .. }) => {
                "there is no such object".to_owned()
            }
            (Answer::Other(why), _) if matches!(error, Error::InvalidPath { .. }) => format!(
                "{why}: folders that hold a key with empty parts (//) cannot be listed here"
            ),
            (Answer::Other(why), _) => why.clone(),
        }
    }
}

/// What came back.
enum Answer {
    /// Nothing, and why.
    None(String),
    /// What a server says: `404 Not Found`, and `NoSuchKey` with a sentence if it says more.
    Status { status: String, code: Option<String>, message: Option<String> },
    /// The innermost reason of all else.
    Other(String),
}

impl Answer {
    fn of(error: &Error) -> Self {
        let innermost = causes(error).last().map(ToString::to_string).unwrap_or_default();
        if causes(error).any(<dyn StdError>::is::<HttpError>) {
            return Self::None(innermost);
        }
        // Its type is not public.
        match causes(error).map(ToString::to_string).find_map(|text| {
            text.strip_prefix("Server returned non-2xx status code: ").map(str::to_owned)
        }) {
            Some(said) => Self::said(&said),
            None => Self::Other(innermost),
        }
    }

    /// `404 Not Found: <Error><Code>NoSuchKey</Code>…`
    fn said(text: &str) -> Self {
        let (status, body) = text.split_once(": ").unwrap_or((text, ""));
        let element = |name: &str| {
            let (_, from) = body.split_once(&format!("<{name}>"))?;
            let (value, _) = from.split_once(&format!("</{name}>"))?;
            Some(value.chars().take(SAID_MAX).collect())
        };
        Self::Status {
            status: status.to_owned(),
            code: element("Code"),
            message: element("Message"),
        }
    }

    fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => status.get(..3)?.parse().ok(),
            _ => None,
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None(why) | Self::Other(why) => f.write_str(why),
            Self::Status { status, code, message } => {
                f.write_str(status)?;
                let said = [code.as_deref(), message.as_deref()];
                match said.into_iter().flatten().collect::<Vec<_>>().as_slice() {
                    [] => Ok(()),
                    said => write!(f, " ({})", said.join(": ")),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;
    use crate::errors::store::in_words;

    #[derive(Debug)]
    struct Said(&'static str);

    impl fmt::Display for Said {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "Server returned non-2xx status code: {}", self.0)
        }
    }

    impl StdError for Said {}

    #[test]
    fn errors_name_the_url_and_what_to_do() {
        let place = Place::of(&Url::parse("s3://bucket/other").unwrap(), vec![]).unwrap();
        let explained = |said: &'static str| {
            let error = Error::Generic { store: "S3", source: Box::new(Said(said)) };
            place.explain(Some(&Path::from("a/b")), error)
        };
        let denied = explained(
            "403 Forbidden: <Error><Code>InvalidAccessKeyId</Code><Message>No such key.</Message>",
        );
        assert!(matches!(denied, Error::PermissionDenied { .. }), "{denied:?}");
        let text = in_words(&denied);
        let begin =
            "s3://bucket/a/b: access denied: 403 Forbidden (InvalidAccessKeyId: No such key.); ";
        assert!(text.starts_with(begin) && text.contains("AWS_ACCESS_KEY_ID"), "{text}");
        let missing = explained("404 Not Found: <Error><Code>NoSuchBucket</Code></Error>");
        assert!(matches!(missing, Error::NotFound { .. }), "{missing:?}");
        let text = in_words(&missing);
        assert!(text.starts_with("s3://bucket/a/b: there is no such bucket; "), "{text}");
        let busy = explained("503 Service Unavailable: <html>…</html>");
        assert!(matches!(busy, Error::Generic { .. }), "{busy:?}");
        assert_eq!(in_words(&busy), "s3://bucket/a/b: the server says 503 Service Unavailable");
    }
}
