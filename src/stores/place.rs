//! A bucket or a web server, and what a statement says about it.

use datafusion::common::{Result, plan_err};
use url::Url;

/// What speaks at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    S3,
    /// Object Storage Service of Alibaba's cloud.
    Oss,
    /// Cloud Object Storage of Tencent's cloud.
    Cos,
    Gcs,
    Web,
}

impl Kind {
    /// As errors of `object_store` name it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Oss => "OSS",
            Self::Cos => "COS",
            Self::Gcs => "GCS",
            Self::Web => "HTTP",
        }
    }

    /// What helps if it refuses us.
    pub(super) fn about_keys(self) -> &'static str {
        match self {
            Self::S3 | Self::Oss | Self::Cos => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of this process, or \
                 OPTIONS ('aws.access_key_id' …, 'aws.secret_access_key' …) of a table"
            }
            Self::Gcs => {
                "set GOOGLE_APPLICATION_CREDENTIALS to a file with a key in the environment of this \
                 process, or OPTIONS ('gcp.service_account_path' …) of a table"
            }
            Self::Web => "web servers are read without a log-in",
        }
    }

    /// What helps if it does not answer.
    pub(super) fn about_address(self) -> &'static str {
        match self {
            Self::S3 => {
                "check the network and AWS_REGION, and AWS_ENDPOINT_URL if the server is not Amazon's"
            }
            Self::Oss | Self::Cos => {
                "set AWS_ENDPOINT_URL, or OPTIONS ('aws.endpoint' …) of a table, to its address"
            }
            Self::Gcs => "check the network",
            Self::Web => "check the address and the network",
        }
    }
}

/// Where a store is, and the options that a statement gives beside its URL.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) kind: Kind,
    /// Scheme, and the name of a bucket or of a server.
    pub(super) url: Url,
    pub(super) options: Vec<(String, String)>,
}

impl Place {
    /// # Errors
    /// If there are no such stores.
    pub(super) fn of(url: &Url, options: Vec<(String, String)>) -> Result<Self> {
        let kind = match url.scheme() {
            "s3" => Kind::S3,
            "oss" => Kind::Oss,
            "cos" => Kind::Cos,
            "gs" | "gcs" => Kind::Gcs,
            "http" | "https" => Kind::Web,
            "file" => {
                return plan_err!(
                    "{url}: files of other machines are not read; write file:/// in front of the path \
                     of a file of this one"
                );
            }
            scheme => {
                return plan_err!(
                    "{url}: '{scheme}' is not a kind of store that is read or written here; known are s3, \
                     gs, oss, cos, http, https and file"
                );
            }
        };
        let mut url = url.clone();
        url.set_path("/");
        url.set_query(None);
        url.set_fragment(None);
        Ok(Self { kind, url, options })
    }
}
