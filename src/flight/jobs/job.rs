//! One statement that runs on when its client is gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use datafusion::physical_plan::ExecutionPlan;
use forebay_scheduler::tables::rows::{Epoch, JobRow};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::kept::{Keeper, Kept};
use crate::flight::access::users::{Identity, Role};

/// What is known of a job before it runs.
pub(in crate::flight) struct About {
    pub(in crate::flight) id: String,
    /// Who submitted it.
    pub(in crate::flight) who: Identity,
    /// The same as a user, where everyone is asked who he is.
    pub(in crate::flight) user: Option<String>,
    /// Its statement.
    pub(in crate::flight) name: String,
    /// The session that it runs in.
    pub(in crate::flight) session: String,
    /// Whether it can be resumed if it does not finish.
    pub(in crate::flight) is_resumable: bool,
}

/// What kept a job from finishing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// It failed by itself, if it did not finish.
    Nothing,
    /// Somebody canceled it, or the server ended.
    Canceled,
    /// All of its server ended before.
    Interrupted,
}

/// How a job ended.
struct End {
    /// The number of rows that it gave or wrote, or why there are none.
    outcome: Result<u64, Status>,
    cut: Cut,
    at: Instant,
    /// Since 1970.
    at_ms: i64,
}

/// A job that runs, or has run.
pub(in crate::flight) struct Job {
    about: About,
    begun: Instant,
    /// Since 1970.
    begun_ms: i64,
    canceled: CancellationToken,
    /// Why it was canceled, if not because the server ends.
    reason: OnceLock<Status>,
    rows: AtomicU64,
    plan: Mutex<Option<Arc<dyn ExecutionPlan>>>,
    kept: Mutex<Option<Kept>>,
    end: OnceLock<End>,
    /// Whether somebody is about to forget it.
    is_taken: AtomicBool,
    /// Canceled when there is an end.
    over: CancellationToken,
}

impl Job {
    /// A job that begins now, and is canceled with this token.
    pub(super) fn new(about: About, canceled: CancellationToken) -> Self {
        Self {
            about,
            begun: Instant::now(),
            begun_ms: Epoch::now().0,
            canceled,
            reason: OnceLock::new(),
            rows: AtomicU64::new(0),
            plan: Mutex::default(),
            kept: Mutex::default(),
            end: OnceLock::new(),
            is_taken: AtomicBool::new(false),
            over: CancellationToken::new(),
        }
    }

    /// A job of an earlier server, which ended so, or has been interrupted.
    pub(super) fn of_earlier(
        about: About,
        begun_ms: i64,
        ended: Option<(Status, bool, i64)>,
    ) -> Self {
        let job = Self { begun_ms, ..Self::new(about, CancellationToken::new()) };
        let interrupted = || {
            let why = format!(
                "its server ended before it did; RESUME JOB '{}' goes on with it",
                job.id()
            );
            (Status::unavailable(why), Cut::Interrupted, begun_ms)
        };
        let (why, cut, at_ms) = match ended {
            Some((why, true, at_ms)) => (why, Cut::Canceled, at_ms),
            Some((why, false, at_ms)) => (why, Cut::Nothing, at_ms),
            None => interrupted(),
        };
        job.end.set(End { outcome: Err(why), cut, at: Instant::now(), at_ms }).ok();
        job.over.cancel();
        job
    }

    pub(in crate::flight) fn id(&self) -> &str {
        &self.about.id
    }

    pub(super) fn who(&self) -> &Identity {
        &self.about.who
    }

    /// Whose it is, where everyone is asked who he is.
    pub(super) fn user(&self) -> Option<&str> {
        self.about.user.as_deref()
    }

    /// Whether it is this one's to see and to cancel.
    pub(super) fn is_seen_by(&self, who: &Identity) -> bool {
        who.role == Role::Admin || self.user() == Some(who.name.as_str())
    }

    /// Ends it, unless it has ended.
    pub(super) fn cancel(&self, reason: Status) {
        self.reason.set(reason).ok();
        self.canceled.cancel();
    }

    /// Waits until it is to end; gives back why.
    pub(super) async fn canceled(&self) -> Status {
        self.canceled.cancelled().await;
        self.reason.get().cloned().unwrap_or_else(|| {
            Status::unavailable("the server ended before it did; submit it again")
        })
    }

    /// What it runs now, by which its progress is known.
    pub(in crate::flight) fn plan(&self) -> Option<Arc<dyn ExecutionPlan>> {
        self.plan.lock().clone()
    }

    /// It runs this plan, whose rows are written here.
    pub(in crate::flight) fn runs(&self, plan: Arc<dyn ExecutionPlan>, keeper: &Keeper) {
        *self.plan.lock() = Some(plan);
        *self.kept.lock() = Some(keeper.kept());
    }

    /// It has given or written so many rows more.
    pub(in crate::flight) fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(in crate::flight) fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// What its rows take on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.kept.lock().as_ref().map_or(0, Kept::bytes)
    }

    /// Its rows, once all of them are there.
    pub(super) fn kept(&self) -> Option<Kept> {
        let is_whole = self.end.get().is_some_and(|end| end.outcome.is_ok());
        self.kept.lock().clone().filter(|_| is_whole)
    }

    /// Drops its rows, but for those who read them.
    pub(super) fn forget(&self) {
        self.kept.lock().take();
    }

    /// It has ended so, unless it had before.
    pub(super) fn ends(&self, outcome: Result<u64, Status>, is_canceled: bool) {
        if outcome.is_err() && !self.is_over() {
            self.forget();
        }
        self.plan.lock().take();
        let cut = if is_canceled { Cut::Canceled } else { Cut::Nothing };
        let end = End { outcome, cut, at: Instant::now(), at_ms: Epoch::now().0 };
        if self.end.set(end).is_ok() {
            tracing::info!(job = %self.id(), "{}", self.state());
            self.over.cancel();
        }
    }

    /// Waits until it is over. Whoever does not wait any more changes nothing.
    pub(in crate::flight) async fn ended(&self) {
        self.over.cancelled().await;
    }

    pub(in crate::flight) fn is_over(&self) -> bool {
        self.end.get().is_some()
    }

    /// Whether it has been over for so long. What can be resumed is kept until it is.
    pub(super) fn is_over_for(&self, time: Duration) -> bool {
        !self.waits_to_be_resumed() && self.end.get().is_some_and(|end| end.at.elapsed() >= time)
    }

    /// Whether it is over, has not finished, and can be resumed.
    pub(in crate::flight) fn waits_to_be_resumed(&self) -> bool {
        self.about.is_resumable && self.end.get().is_some_and(|end| end.outcome.is_err())
    }

    /// Somebody is about to forget it.
    pub(super) fn take(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    pub(super) fn give_back(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    pub(super) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    pub(in crate::flight) fn is_resumable(&self) -> bool {
        self.about.is_resumable
    }

    /// Whether somebody has canceled it, and not the server's end.
    pub(super) fn is_canceled_by_somebody(&self) -> bool {
        self.reason.get().is_some()
    }

    pub(super) fn ended_at(&self) -> Option<Instant> {
        self.end.get().map(|end| end.at)
    }

    /// For how long it has run.
    pub(in crate::flight) fn elapsed(&self) -> Duration {
        self.ended_at().map_or_else(|| self.begun.elapsed(), |end| end - self.begun)
    }

    /// As `forebay.jobs` has it.
    pub(in crate::flight) fn state(&self) -> &'static str {
        match self.end.get() {
            None => "running",
            Some(End { cut: Cut::Canceled, .. }) => "canceled",
            Some(End { cut: Cut::Interrupted, .. }) => "interrupted",
            Some(End { outcome: Ok(_), .. }) => "finished",
            Some(End { outcome: Err(_), .. }) => "failed",
        }
    }

    /// Why it has no rows, with its name, if it has ended so.
    pub(in crate::flight) fn failure(&self) -> Option<Status> {
        let why = self.end.get()?.outcome.as_ref().err()?;
        Some(Status::new(why.code(), format!("job {}: {}", self.id(), why.message())))
    }

    pub(super) fn row(&self) -> JobRow {
        let end = self.end.get();
        let (rows, error) = match end.map(|end| &end.outcome) {
            Some(Ok(rows)) => (*rows, String::new()),
            Some(Err(why)) => (self.rows(), why.message().to_owned()),
            None => (self.rows(), String::new()),
        };
        JobRow {
            id: self.about.id.clone(),
            name: self.about.name.clone(),
            session: self.about.session.clone(),
            owner: self.about.user.clone().unwrap_or_default(),
            state: self.state(),
            queued: Some(self.begun_ms),
            started: Some(self.begun_ms),
            ended: end.map(|end| end.at_ms),
            rows,
            bytes: self.bytes(),
            error,
            detached: true,
            ..JobRow::default()
        }
    }
}
