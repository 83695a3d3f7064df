//! Where a package is: a folder or a URL, as a user writes it.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use url::Url;

use crate::error::ModelError;

/// The URL of a package from what a user wrote: a URL, or a path, absolute or relative to the
/// current folder.
///
/// # Errors
/// [`ModelError::Package`] for a local folder that does not exist, or a malformed URL.
pub fn parse_location(text: &str) -> Result<Url, ModelError> {
    let text = text.trim();
    let problem = |problem: String, remedy: &str| ModelError::Package {
        location: text.to_owned(),
        problem,
        remedy: remedy.to_owned(),
    };
    let is_url = text.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    if is_url {
        let url = Url::parse(text).map_err(|e| {
            problem(format!("not a URL: {e}"), "write a folder, or a URL such as file:///models/x")
        })?;
        if let Some(dir) = local_dir(&url)? {
            return folder_url(&dir, problem);
        }
        return Ok(url);
    }
    if text.is_empty() {
        return Err(problem(
            "the location is empty".to_owned(),
            "write the package's folder or URL",
        ));
    }
    let home = text.strip_prefix("~/").zip(std::env::var_os("HOME"));
    let path = match home {
        Some((rest, home)) => Path::new(&home).join(rest),
        None => PathBuf::from(text),
    };
    folder_url(&path, problem)
}

fn folder_url(
    path: &Path,
    problem: impl Fn(String, &str) -> ModelError,
) -> Result<Url, ModelError> {
    let remedy = "write the path of a folder that holds model.toml";
    let found = fs::canonicalize(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => problem("no such folder".to_owned(), remedy),
        _ => problem(e.to_string(), remedy),
    })?;
    if !found.is_dir() {
        return Err(problem("not a folder".to_owned(), remedy));
    }
    Url::from_file_path(&found).map_err(|()| problem("not an absolute path".to_owned(), remedy))
}

/// The folder of a `file://` URL; `None` for other URLs.
pub(super) fn local_dir(location: &Url) -> Result<Option<PathBuf>, ModelError> {
    if location.scheme() != "file" {
        return Ok(None);
    }
    location.to_file_path().map(Some).map_err(|()| ModelError::Package {
        location: location.to_string(),
        problem: "a file URL must hold an absolute path of this machine".to_owned(),
        remedy: "write it as file:///folder".to_owned(),
    })
}

/// Whether a name stays within its folder.
pub(in crate::model) fn is_safe_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(['\\', '\0'])
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_paths_or_urls() {
        let folder = tempfile::tempdir().unwrap();
        let expected = Url::from_file_path(folder.path().canonicalize().unwrap()).unwrap();
        let path = folder.path().to_str().unwrap();
        for text in [
            path.to_owned(),
            format!("{path}/"),
            format!("file://{path}"),
            format!("{path}/../{}", folder.path().file_name().unwrap().to_str().unwrap()),
        ] {
            assert_eq!(parse_location(&text).unwrap(), expected, "{text}");
        }
        assert_eq!(parse_location("s3://bucket/x").unwrap().as_str(), "s3://bucket/x");
        for (text, expected) in [
            ("", "the location is empty"),
            ("/no/such/folder", "no such folder"),
            ("file:///no/such/folder", "no such folder"),
            ("/proc/version", "not a folder"),
            ("s3://[", "not a URL"),
        ] {
            let message = parse_location(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn names_stay_within_the_package() {
        for name in ["a", "a/b.json", "ä b"] {
            assert!(is_safe_name(name), "{name}");
        }
        for name in ["", "/a", "..", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0"] {
            assert!(!is_safe_name(name), "{name}");
        }
    }
}
