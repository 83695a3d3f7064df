//! Ids of jobs. Each job has one, and keeps it wherever it goes.

use std::sync::LazyLock;
use std::thread;

use ferroid::base32::Base32SnowExt;
use ferroid::generator::AtomicSnowflakeGenerator;
use ferroid::id::SnowflakeMastodonId;
use ferroid::time::MonotonicClock;
use parking_lot::Mutex;

/// No id is longer.
const CHARS_MAX: usize = 64;

static IDS: LazyLock<AtomicSnowflakeGenerator<SnowflakeMastodonId, MonotonicClock>> =
    LazyLock::new(|| AtomicSnowflakeGenerator::new(0, MonotonicClock::<1>::default()));

/// An id that no other job of this process has. Those that are made later are greater.
pub fn next_job_id() -> String {
    let id: SnowflakeMastodonId = IDS.next_id(|_| thread::yield_now());
    id.encode().to_string()
}

/// Whether this can be the id of a job: it names files, too.
pub(crate) fn is_job_id(id: &str) -> bool {
    (1..=CHARS_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The id that the first plan of a session gets which runs on a cluster, as an extension of the session's
/// configuration: whoever submitted it was told the id before.
#[derive(Debug)]
pub struct GivenId(Mutex<Option<String>>);

impl GivenId {
    /// An id of [`next_job_id`].
    pub fn new(id: &str) -> Self {
        Self(Mutex::new(Some(id.to_owned())))
    }

    /// The id, once.
    pub(crate) fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_words_in_the_order_in_which_they_are_made() {
        let ids: Vec<_> = (0..1000).map(|_| next_job_id()).collect();
        assert!(ids.is_sorted_by(|before, after| before < after), "{ids:?}");
        assert!(ids.iter().all(|id| is_job_id(id)), "{ids:?}");
        for bad in ["", "..", "a/b", "a b", "\u{e9}", "x".repeat(CHARS_MAX + 1).as_str()] {
            assert!(!is_job_id(bad), "{bad}");
        }
    }

    #[test]
    fn a_given_id_is_given_once() {
        let given = GivenId::new("0A");
        assert_eq!((given.take().as_deref(), given.take()), (Some("0A"), None));
    }
}
