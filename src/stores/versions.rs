//! Files of two buckets, or of two moments, are two files.
//!
//! DataFusion remembers the ends of Parquet files by their paths, without their buckets, and takes what it
//! remembers for that of a file of equal size and time. But stores tell times in seconds, and a file may be
//! written again within one. So times get, below the millisecond, which stores leave out, what tells versions
//! apart: a number of the bucket and of the tag that the store gives to the content.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use object_store::ObjectMeta;
use url::Url;

const MILLISECOND_NS: u64 = 1_000_000;

/// What a store says of a file, with a time that is this version's alone.
pub(super) fn told_apart(bucket: &Url, mut meta: ObjectMeta) -> ObjectMeta {
    let mut hasher = DefaultHasher::new();
    (bucket, &meta.e_tag, &meta.version).hash(&mut hasher);
    let number = hasher.finish() % MILLISECOND_NS;
    let told = u64::from(meta.last_modified.timestamp_subsec_nanos()) % MILLISECOND_NS;
    meta.last_modified =
        meta.last_modified - Duration::from_nanos(told) + Duration::from_nanos(number);
    meta
}

#[cfg(test)]
mod tests {
    use object_store::path::Path;

    use super::*;

    #[test]
    fn another_bucket_or_content_is_another_time_in_the_same_millisecond() {
        let meta = |tag: &str| ObjectMeta {
            location: Path::from("a.parquet"),
            last_modified: Default::default(),
            size: 1,
            e_tag: Some(tag.to_owned()),
            version: None,
        };
        let [one, other] = ["s3://one/", "s3://other/"].map(|url| Url::parse(url).unwrap());
        let times = [(&one, "1"), (&one, "2"), (&other, "1")]
            .map(|(bucket, tag)| told_apart(bucket, meta(tag)).last_modified);
        assert!(times[0] != times[1] && times[0] != times[2] && times[1] != times[2], "{times:?}");
        assert!(times.iter().all(|time| time.timestamp_millis() == 0));
        assert_eq!(told_apart(&one, meta("1")).last_modified, times[0]);
    }
}
