//! Empty objects by which some tools mark folders: `photos/`, before `photos/a.jpg`. They are no files,
//! and their keys without the slash name nothing.

use std::pin::Pin;

use futures::StreamExt;
use futures::stream::{BoxStream, Peekable, unfold};
use object_store::path::Path;
use object_store::{ObjectMeta, Result};

pub(super) type Listing = BoxStream<'static, Result<ObjectMeta>>;

/// A listing without the markers of `folder` and of those in it. Keys come in order, so that what is in
/// a folder follows its marker.
pub(super) fn without_markers(found: Listing, folder: Option<Path>) -> Listing {
    let next = |(mut found, folder): (Peekable<Listing>, Option<Path>)| async move {
        loop {
            let item = found.next().await?;
            let is_marker = match &item {
                Ok(meta) if meta.size == 0 => {
                    let after = Pin::new(&mut found).peek().await;
                    folder.as_ref() == Some(&meta.location)
                        || matches!(after, Some(Ok(next)) if is_in(&meta.location, &next.location))
                }
                _ => false,
            };
            if !is_marker {
                return Some((item, (found, folder)));
            }
        }
    };
    unfold((found.peekable(), folder), next).boxed()
}

fn is_in(folder: &Path, path: &Path) -> bool {
    path != folder && path.prefix_matches(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_markers_are_left_out() {
        let found = [("p", 0), ("p/a", 0), ("p/a/x", 1), ("p/b", 0), ("p/b-c", 0), ("p/c", 2)];
        let metas = found.map(|(path, size)| {
            let (e_tag, version) = (None, None);
            let last_modified = Default::default();
            Ok(ObjectMeta { location: Path::from(path), last_modified, size, e_tag, version })
        });
        let found = futures::stream::iter(metas).boxed();
        let left = without_markers(found, Some(Path::from("p"))).map(|meta| {
            let meta: ObjectMeta = meta.unwrap();
            meta.location.to_string()
        });
        assert_eq!(left.collect::<Vec<_>>().await, ["p/a/x", "p/b", "p/b-c", "p/c"]);
    }
}
