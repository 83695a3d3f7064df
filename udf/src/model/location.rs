//! Where a package is: a folder or a URL, as a user writes it, and as a plan carries it.

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
        if let Some(path) = local_dir(&url)? {
            return local_url(&path, problem);
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
    local_url(&path, problem)
}

fn local_url(path: &Path, problem: impl Fn(String, &str) -> ModelError) -> Result<Url, ModelError> {
    let remedy =
        "write the path of a folder that holds model.toml or an ONNX model, or of an ONNX file";
    let is_file = path.to_str().is_some_and(is_onnx) && !path.is_dir();
    // Links among a model's files lead to a store that has no names (huggingface_hub's cache).
    let resolve = |path: &Path| match (is_file, path.parent(), path.file_name()) {
        (true, Some(above), Some(name)) => {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            fs::metadata(path).and_then(|_| Ok(fs::canonicalize(above)?.join(name)))
        }
        _ => fs::canonicalize(path),
    };
    let found = resolve(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound if is_file => problem("no such file".to_owned(), remedy),
        io::ErrorKind::NotFound => problem("no such folder".to_owned(), remedy),
        _ => problem(e.to_string(), remedy),
    })?;
    if !found.is_dir() && !is_file {
        return Err(problem("neither a folder nor an ONNX file".to_owned(), remedy));
    }
    Url::from_file_path(&found).map_err(|()| problem("not an absolute path".to_owned(), remedy))
}

/// A package's folder, and the program in it if the location names that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) folder: Url,
    pub(super) program: Option<String>,
}

impl Place {
    /// An ONNX file belongs to its folder, and one in a folder called `onnx` to the one above: there a
    /// model's other files are.
    pub(super) fn of(location: &Url) -> Self {
        let parts: Vec<&str> = location.path().split('/').collect();
        let text = |part: &str| Url::parse(&format!("file:///{part}")).ok()?.to_file_path().ok();
        let name = |part: &str| Some(text(part)?.file_name()?.to_str()?.to_owned());
        let whole = || Self { folder: location.clone(), program: None };
        let is_folder = || location.to_file_path().is_ok_and(|path| path.is_dir());
        let [above @ .., last] = parts.as_slice() else { return whole() };
        let Some(file) = name(last).filter(|name| is_onnx(name) && !is_folder()) else {
            return whole();
        };
        let (above, program) = match above {
            [above @ .., "onnx"] => (above, format!("onnx/{file}")),
            above => (above, file),
        };
        let mut folder = location.clone();
        folder.set_path(&above.join("/"));
        Self { folder, program: Some(program) }
    }
}

/// Whether a file's name says that it is an ONNX model.
pub(super) fn is_onnx(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
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

/// What names a package and pins it.
#[derive(Clone, Copy, Debug)]
pub struct Pinned<'a> {
    /// URL of the package's folder, or of the ONNX file in it that is the program.
    pub location: &'a Url,
    /// SHA-256 of its description.
    pub content_hash: &'a str,
    /// The description, if it has no `model.toml`.
    pub description: Option<&'a str>,
}

impl Pinned<'_> {
    /// The package's folder, if it is on this machine.
    pub fn local_folder(&self) -> Option<PathBuf> {
        local_dir(&Place::of(self.location).folder).ok().flatten()
    }
}

/// Whether a name stays within its folder.
pub(super) fn is_safe_name(name: &str) -> bool {
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
            ("/proc/version", "neither a folder nor an ONNX file"),
            ("/no/such/model.onnx", "no such file"),
            ("s3://[", "not a URL"),
        ] {
            let message = parse_location(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn an_onnx_file_belongs_to_the_folder_of_its_model() {
        let place = |text: &str| {
            let place = Place::of(&Url::parse(text).unwrap());
            (place.folder.to_string(), place.program)
        };
        let program = |name: &str| Some(name.to_owned());
        for (location, folder, expected) in [
            ("file:///m/model.onnx", "file:///m", program("model.onnx")),
            ("file:///m/onnx/a%20b.ONNX", "file:///m", program("onnx/a b.ONNX")),
            ("s3://bucket/onnx/x.onnx", "s3://bucket", program("onnx/x.onnx")),
            ("s3://bucket/x", "s3://bucket/x", None),
            ("file:///m/onnx", "file:///m/onnx", None),
        ] {
            assert_eq!(place(location), (folder.to_owned(), expected), "{location}");
        }
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("package.onnx");
        fs::create_dir(&named).unwrap();
        let location = Url::from_file_path(&named).unwrap();
        assert_eq!(Place::of(&location).program, None);
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
