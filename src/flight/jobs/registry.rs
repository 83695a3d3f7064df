//! All detached jobs of a server: whose they are, how many there may be, and when they are forgotten.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_scheduler::tables::rows::JobRow;
use forebay_scheduler::{Gate, Inside};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use super::job::{About, Job};
use super::kept::Kept;
use super::saved::Saved;
use crate::flight::access::users::{Identity, Role};
use crate::flight::limits::Limits;
use crate::flight::limits::slots::ending;

/// Jobs of one user that are over and known. There may be many that are short.
const OVER_MAX: usize = 1000;

/// Jobs, by their ids.
type Known = BTreeMap<String, Arc<Job>>;

/// All detached jobs.
pub(in crate::flight) struct Jobs {
    limits: Limits,
    known: Mutex<Known>,
    tasks: Mutex<JoinSet<()>>,
    /// Closed when the server ends.
    running: Gate,
    /// Canceled then, and with it all jobs.
    ending: CancellationToken,
    /// What is left of jobs when the server ends, if it keeps anything.
    saved: Option<Arc<Saved>>,
}

impl Jobs {
    /// Those that an earlier server has saved, and did not finish.
    ///
    /// # Errors
    /// If it cannot be said which these are.
    pub(in crate::flight) async fn new(
        limits: Limits,
        saved: Option<Saved>,
    ) -> datafusion::common::Result<Arc<Self>> {
        let earlier = match &saved {
            Some(saved) => saved.jobs().await?,
            None => vec![],
        };
        let known = earlier.into_iter().map(|job| (job.id().to_owned(), Arc::new(job)));
        let known: Known = known.collect();
        Ok(Arc::new(Self {
            limits,
            known: Mutex::new(known),
            tasks: Mutex::default(),
            running: Gate::default(),
            ending: CancellationToken::new(),
            saved: saved.map(Arc::new),
        }))
    }

    /// Where jobs are saved.
    ///
    /// # Errors
    /// If the server does not save any.
    pub(in crate::flight) fn saved(&self) -> Result<&Arc<Saved>, Status> {
        self.saved.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "this server keeps nothing of jobs when it ends, so none can be resumed; start it with \
                 `forebay serve --state DIR`",
            )
        })
    }

    /// Begins a job, whose work gives the number of its rows, in place of an earlier one if it goes on with that.
    ///
    /// # Errors
    /// If as many run as may, or the server ends, or the earlier one is not the one that is known any more.
    pub(in crate::flight) fn submit<W>(
        &self,
        about: About,
        earlier: Option<&Arc<Job>>,
        work: impl FnOnce(Arc<Job>) -> W,
    ) -> Result<Arc<Job>, Status>
    where
        W: Future<Output = Result<u64, Status>> + Send + 'static,
    {
        let inside = self.running.enter().ok_or_else(ending)?;
        let job = Arc::new(Job::new(about, self.ending.child_token()));
        {
            let mut known = self.known.lock();
            check_is_known(&known, job.id(), earlier)?;
            self.check_free(&known, job.user())?;
            if earlier.is_none() && job.is_resumable() {
                self.check_unfinished(&known, job.user())?;
            }
            forget_oldest(&mut known, job.user());
            known.insert(job.id().to_owned(), Arc::clone(&job));
        }
        tracing::info!(job = %job.id(), "is submitted by '{}'", job.who().name);
        let running = Running { job: Arc::clone(&job), _inside: inside };
        let work = Box::pin(work(Arc::clone(&job)));
        self.tasks.lock().spawn(run(running, work, self.saved.clone()));
        Ok(job)
    }

    /// How many jobs this user may have. One is left for the others.
    fn most_of(&self, user: Option<&str>) -> usize {
        let Limits { jobs_max, jobs_per_user_max, .. } = self.limits;
        match user {
            Some(_) => jobs_per_user_max.min(jobs_max.saturating_sub(1)).max(1),
            None => jobs_max,
        }
    }

    /// What of a job is kept to be resumed stays until somebody says so: for each that begins there must be room.
    fn check_unfinished(&self, known: &Known, user: Option<&str>) -> Result<(), Status> {
        // One that runs may come to it, too.
        let own = known.values().filter(|job| {
            let has_not_finished = !job.is_over() || job.waits_to_be_resumed();
            job.user() == user && job.is_resumable() && has_not_finished
        });
        let own: Vec<&Arc<Job>> = own.collect();
        let most = self.most_of(user);
        // As many as that do not run at a time: one of them waits.
        let oldest = own.iter().find(|job| job.is_over()).filter(|_| own.len() >= most);
        let Some(oldest) = oldest.map(|job| job.id()) else { return Ok(()) };
        let ids: Vec<&str> = own.iter().map(|job| job.id()).collect();
        let (who, option) = match user {
            Some(user) => (format!("'{user}' has"), "--max-jobs-per-user"),
            None => ("this server has".to_owned(), "--max-jobs"),
        };
        Err(Status::resource_exhausted(format!(
            "{who} {} jobs that have not finished and can be resumed, and may have {most} ({option} of the \
             server): go on with one, such as RESUME JOB '{oldest}', or drop what is kept of it with FORGET JOB \
             '{oldest}'; they are {}",
            ids.len(),
            ids.join(", ")
        )))
    }

    fn check_free(&self, known: &Known, user: Option<&str>) -> Result<(), Status> {
        let jobs_max = self.limits.jobs_max;
        let running = || known.values().filter(|job| !job.is_over());
        if let Some(user) = user {
            let most = self.most_of(Some(user));
            if running().filter(|job| job.user() == Some(user)).count() >= most {
                return Err(Status::resource_exhausted(format!(
                    "'{user}' runs {most} detached jobs, as many as one user may (--max-jobs-per-user of \
                     the server); wait for one with WAIT FOR JOB, or end one with CANCEL JOB"
                )));
            }
        }
        if running().count() >= jobs_max {
            return Err(Status::resource_exhausted(format!(
                "this server runs {jobs_max} detached jobs, as many as it may (--max-jobs); wait for one \
                 with WAIT FOR JOB, or try again later"
            )));
        }
        Ok(())
    }

    /// The job of this id, if it is this one's to see.
    ///
    /// # Errors
    /// If it is not, or there is none, or none any more.
    pub(in crate::flight) fn find(&self, who: &Identity, id: &str) -> Result<Arc<Job>, Status> {
        let found = self.known.lock().get(id).cloned();
        let is_known =
            |job: &Arc<Job>| job.is_seen_by(who) && !job.is_over_for(self.limits.jobs_kept);
        found.filter(is_known).ok_or_else(|| {
            let whose = match who.role {
                Role::Admin => String::new(),
                _ => format!(" of '{}'", who.name),
            };
            Status::not_found(format!(
                "there is no detached job '{id}'{whose}, or none any more: what is over is forgotten after \
                 {} s (--keep-jobs of the server); SHOW JOBS lists those that there are",
                self.limits.jobs_kept.as_secs()
            ))
        })
    }

    /// A job that is over and has not finished, so that it can be gone on with.
    ///
    /// # Errors
    /// As [`Self::find`], and if it runs, has finished, or was not submitted to be resumed.
    pub(in crate::flight) fn resumable(
        &self,
        who: &Identity,
        id: &str,
    ) -> Result<Arc<Job>, Status> {
        self.saved()?;
        let job = self.find(who, id)?;
        if !job.is_over() {
            return Err(runs(id));
        }
        if job.failure().is_none() {
            return Err(Status::failed_precondition(format!(
                "job '{id}' has finished, and what it wrote is visible: there is nothing to resume"
            )));
        }
        if !job.is_resumable() {
            return Err(Status::failed_precondition(format!(
                "job '{id}' was submitted without forebay.resumable, so nothing of it was kept; SET \
                 forebay.resumable = true and submit its statement again"
            )));
        }
        Ok(job)
    }

    /// Ends a job. It may end otherwise in the meantime.
    ///
    /// # Errors
    /// As [`Self::find`], and if it is over.
    pub(in crate::flight) fn cancel(&self, who: &Identity, id: &str) -> Result<Arc<Job>, Status> {
        let job = self.find(who, id)?;
        if job.is_over() {
            return Err(Status::failed_precondition(format!(
                "job '{id}' is over, and cannot be canceled: it is {}; FORGET JOB '{id}' drops what is \
                 kept of it",
                job.state()
            )));
        }
        job.cancel(Status::cancelled(format!("it was canceled by '{}'", who.name)));
        Ok(job)
    }

    /// A job that is over and about to be forgotten: until that is done, nobody else resumes or forgets it.
    ///
    /// # Errors
    /// As [`Self::find`], and if it runs, or somebody forgets it already.
    pub(in crate::flight) fn forget(
        &self,
        who: &Identity,
        id: &str,
    ) -> Result<Forgetting<'_>, Status> {
        let job = self.find(who, id)?;
        if !job.is_over() {
            return Err(Status::failed_precondition(format!(
                "job '{id}' is running, and cannot be forgotten; CANCEL JOB '{id}' ends it"
            )));
        }
        let known = self.known.lock();
        check_is_known(&known, id, Some(&job))?;
        // Under the lock, under which another one begins in its place.
        job.take();
        Ok(Forgetting { jobs: self, job })
    }

    /// A job that has finished, and what it gave.
    ///
    /// # Errors
    /// As [`Self::find`], if it runs, and why it failed.
    pub(super) fn result(&self, who: &Identity, id: &str) -> Result<(Arc<Job>, Kept), Status> {
        let job = self.find(who, id)?;
        match (job.failure(), job.kept()) {
            (Some(failure), _) => Err(failure),
            (None, Some(kept)) => Ok((job, kept)),
            (None, None) => Err(Status::failed_precondition(format!(
                "job '{id}' is running, and has no result yet; WAIT FOR JOB '{id}' waits until it has"
            ))),
        }
    }

    /// Whether the rows of a job, as many as there are by now, may be kept.
    ///
    /// # Errors
    /// If they and those of the same user's other jobs are too large.
    pub(in crate::flight) fn check_room(&self, job: &Job) -> Result<(), Status> {
        let most = self.limits.job_results_max;
        let bytes: u64 = {
            let known = self.known.lock();
            let own = known.values().filter(|other| other.user() == job.user());
            own.map(|other| other.bytes()).sum()
        };
        if bytes <= most {
            return Ok(());
        }
        let whose = job.user().map(|user| format!(" of '{user}'")).unwrap_or_default();
        Err(Status::resource_exhausted(format!(
            "its result, and those of other jobs{whose} that are kept, have more than {most} bytes \
             (--job-results-limit of the server); write the rows with COPY, or drop older results with \
             FORGET JOB"
        )))
    }

    /// The jobs as `forebay.jobs` has them: a user's or all.
    pub(super) fn rows(&self, owner: Option<&str>) -> Vec<JobRow> {
        let known = self.known.lock();
        let is_shown = |job: &&Arc<Job>| {
            !job.is_over_for(self.limits.jobs_kept)
                && owner.is_none_or(|owner| job.user() == Some(owner))
        };
        known.values().filter(is_shown).map(|job| job.row()).collect()
    }

    /// Forgets jobs that have been over for long, and ends those of whom nobody knows.
    pub(in crate::flight) fn sweep(&self, knows: impl Fn(&Identity) -> bool) {
        let running: Vec<_> = {
            let mut known = self.known.lock();
            known.retain(|_, job| {
                let is_old = job.is_over_for(self.limits.jobs_kept);
                if is_old {
                    job.forget();
                }
                !is_old
            });
            known.values().filter(|job| !job.is_over()).cloned().collect()
        };
        for job in running.iter().filter(|job| !knows(job.who())) {
            job.cancel(Status::cancelled("its user was removed or changed"));
        }
        while self.tasks.lock().try_join_next().is_some() {}
    }

    /// Begins no more jobs, ends those that run, and waits until they have ended.
    pub(in crate::flight) async fn end(&self) {
        self.ending.cancel();
        self.running.drain().await;
    }

    /// Forgets all jobs, and removes their files.
    pub(in crate::flight) fn forget_all(&self) {
        let known = std::mem::take(&mut *self.known.lock());
        known.values().for_each(|job| job.forget());
    }

    /// What ends all jobs when it is dropped.
    pub(in crate::flight) fn guard(&self) -> DropGuard {
        self.ending.clone().drop_guard()
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("known", &self.known.lock().len()).finish_non_exhaustive()
    }
}

/// A job that somebody is about to forget. If he does not come so far, it is known as before.
pub(in crate::flight) struct Forgetting<'a> {
    jobs: &'a Jobs,
    job: Arc<Job>,
}

impl Forgetting<'_> {
    pub(in crate::flight) fn job(&self) -> &Arc<Job> {
        &self.job
    }

    /// Nothing is left of it but its row.
    pub(in crate::flight) fn done(self) -> Arc<Job> {
        self.jobs.known.lock().remove(self.job.id());
        self.job.forget();
        Arc::clone(&self.job)
    }
}

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.job.give_back();
    }
}

/// Whether the job of this id is still the one that was found before, or there is none if none was.
fn check_is_known(known: &Known, id: &str, earlier: Option<&Arc<Job>>) -> Result<(), Status> {
    match (known.get(id), earlier) {
        (None, None) => Ok(()),
        (Some(known), Some(earlier)) if Arc::ptr_eq(known, earlier) => match known.is_taken() {
            true => Err(Status::failed_precondition(format!("job '{id}' is being forgotten"))),
            false => Ok(()),
        },
        (Some(other), _) if !other.is_over() => Err(runs(id)),
        (Some(other), _) => Err(Status::failed_precondition(format!(
            "job '{id}' was resumed by somebody else meanwhile, and is {}",
            other.state()
        ))),
        (None, Some(_)) => {
            Err(Status::not_found(format!("job '{id}' was forgotten by somebody meanwhile")))
        }
    }
}

fn runs(id: &str) -> Status {
    Status::failed_precondition(format!(
        "job '{id}' is running, and cannot be resumed; WAIT FOR JOB '{id}' waits for it, CANCEL JOB '{id}' ends it"
    ))
}

/// Makes room for another one that will be over.
fn forget_oldest(known: &mut Known, user: Option<&str>) {
    // What is kept to be resumed goes when somebody says so.
    let is_old = |job: &Arc<Job>| job.is_over() && !job.waits_to_be_resumed();
    let over = || known.values().filter(|job| job.user() == user && is_old(job));
    if over().count() < OVER_MAX {
        return;
    }
    let oldest = over().min_by_key(|job| job.ended_at()).map(|job| job.id().to_owned());
    if let Some(oldest) = oldest.and_then(|oldest| known.remove(&oldest)) {
        oldest.forget();
    }
}

/// A job at work. However that ends, the job has an end then.
struct Running {
    job: Arc<Job>,
    _inside: Inside,
}

impl Drop for Running {
    fn drop(&mut self) {
        let why = Status::internal("it broke off, for a reason that the server's log has");
        self.job.ends(Err(why), false);
    }
}

/// Does the work of a job, until it is done or the job is canceled, and says how it ended.
async fn run(
    running: Running,
    work: impl Future<Output = Result<u64, Status>>,
    saved: Option<Arc<Saved>>,
) {
    let job = &running.job;
    let (outcome, is_canceled) = tokio::select! {
        biased;
        reason = job.canceled() => (Err(reason), true),
        outcome = work => (outcome, false),
    };
    // Before it is known to be over: from then on somebody may resume or forget it. One that the server's end has
    // cut off has no end.
    let has_end = !is_canceled || job.is_canceled_by_somebody();
    if let (Some(saved), Err(why)) = (saved.filter(|_| job.is_resumable() && has_end), &outcome) {
        saved.note_end(job.id(), why, is_canceled).await;
    }
    job.ends(outcome, is_canceled);
}

#[cfg(test)]
mod tests {
    use datafusion::config::ConfigOptions;
    use forebay_scheduler::journal::Documents;
    use tempfile::TempDir;
    use tonic::Code;

    use super::*;
    use crate::flight::jobs::pins::Pins;
    use crate::flight::jobs::saved::{Begun, Document};

    const MOST: usize = 3;

    /// A server that finds these jobs of an earlier one.
    async fn jobs(left: &[&str]) -> (TempDir, Arc<Jobs>) {
        let state = tempfile::tempdir().unwrap();
        let documents = Documents::in_folder(state.path()).unwrap();
        let saved = Saved::of(documents, &ConfigOptions::default());
        for id in left {
            saved.put(&document(id)).await.unwrap();
        }
        let limits = Limits { jobs_per_user_max: MOST, ..Limits::default() };
        (state, Jobs::new(limits, Some(saved)).await.unwrap())
    }

    fn document(id: &str) -> Document {
        let remains = r#"{"store": "file:///", "folder": "t/_forebay-0"}"#;
        Document::new(Begun {
            id,
            statement: "SUBMIT COPY t TO 'u/'",
            name: "COPY".to_owned(),
            user: Some("ann"),
            begun_ms: 7,
            options: &ConfigOptions::default(),
            write_id: String::new(),
            remains: serde_json::from_str(remains).unwrap(),
            pins: Pins::default(),
        })
    }

    fn ann() -> Identity {
        Identity::of_nobody("ann")
    }

    fn about(id: &str) -> About {
        About {
            id: id.to_owned(),
            who: ann(),
            user: Some("ann".to_owned()),
            name: "COPY".to_owned(),
            session: String::new(),
            is_resumable: true,
        }
    }

    #[tokio::test]
    async fn of_all_who_resume_a_job_one_does() {
        let (_state, jobs) = jobs(&["0A", "0B"]).await;
        let found = |id| jobs.resumable(&ann(), id).unwrap();
        let (first, second) = (found("0A"), found("0A"));
        let job = jobs.submit(about("0A"), Some(&first), |_| async { Ok(7) }).unwrap();
        let refuse = |earlier: Option<&Arc<Job>>, id| {
            jobs.submit(about(id), earlier, |_| async { Ok(7) }).err().unwrap()
        };
        let running = refuse(Some(&second), "0A");
        assert!(running.message().contains("is running"), "{running}");
        job.ended().await;
        // It is over again, and not the one that was found.
        let late = refuse(Some(&second), "0A");
        assert!(late.message().contains("resumed by somebody else"), "{late}");
        assert_eq!(refuse(None, "0A").code(), Code::FailedPrecondition);

        let other = found("0B");
        let forgetting = jobs.forget(&ann(), "0B").unwrap();
        let taken = refuse(Some(&other), "0B");
        assert!(taken.message().contains("is being forgotten"), "{taken}");
        let twice = jobs.forget(&ann(), "0B").err().unwrap();
        assert!(twice.message().contains("is being forgotten"), "{twice}");
        // What cannot be done is not done: it is there as before.
        drop(forgetting);
        jobs.forget(&ann(), "0B").unwrap().done();
        assert_eq!(refuse(Some(&other), "0B").code(), Code::NotFound);
        assert_eq!(jobs.find(&ann(), "0B").err().unwrap().code(), Code::NotFound);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn how_a_job_ended_is_saved_before_anybody_knows() {
        let (_state, jobs) = jobs(&["0A"]).await;
        let states = async || -> Vec<_> {
            let left = jobs.saved().unwrap().jobs().await.unwrap();
            left.iter().map(Job::state).collect()
        };
        for _ in 0..20 {
            let earlier = jobs.resumable(&ann(), "0A").unwrap();
            let saved = Arc::clone(jobs.saved().unwrap());
            saved.put(&document("0A")).await.unwrap();
            let work = |_| async { Err(Status::internal("it is full")) };
            let job = jobs.submit(about("0A"), Some(&earlier), work).unwrap();
            job.ended().await;
            assert_eq!((states().await, job.state()), (vec!["failed"], "failed"));
        }
    }

    #[tokio::test]
    async fn jobs_that_can_be_resumed_are_so_many() {
        let (_state, jobs) = jobs(&["0A", "0B", "0C"]).await;
        let submit = |id| jobs.submit(about(id), None, |_| async { Ok(7) });
        let refused = submit("0D").err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        for said in ["'ann' has 3", "--max-jobs-per-user", "FORGET JOB '0A'", "0A, 0B, 0C"] {
            assert!(refused.message().contains(said), "{said}: {refused}");
        }
        // One that runs has not finished either.
        let earlier = jobs.resumable(&ann(), "0A").unwrap();
        let (ends, end) = tokio::sync::oneshot::channel::<()>();
        let work = |_| async {
            end.await.ok();
            Err(Status::internal("it is full"))
        };
        let again = jobs.submit(about("0A"), Some(&earlier), work).unwrap();
        let refused = submit("0D").err().unwrap();
        for said in ["'ann' has 3", "FORGET JOB '0B'", "0A, 0B, 0C"] {
            assert!(refused.message().contains(said), "{said}: {refused}");
        }
        ends.send(()).unwrap();
        again.ended().await;
        // Others may go on, and so may these.
        let plain = About { is_resumable: false, ..about("0E") };
        jobs.submit(plain, None, |_| async { Ok(7) }).unwrap().ended().await;
        let earlier = jobs.resumable(&ann(), "0B").unwrap();
        jobs.submit(about("0B"), Some(&earlier), |_| async { Ok(7) }).unwrap().ended().await;
        submit("0D").unwrap();
    }
}
