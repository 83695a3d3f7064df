//! Jobs that can be resumed: what is saved when they begin, and how they go on.

use std::sync::{Arc, OnceLock};

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, plan_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::DataFrame;
use datafusion::sql::parser::Statement as SqlStatement;
use forebay_engine::InPartsExec;
use forebay_engine::write::resume::{Looked, Overview, Remains};
use forebay_engine::write::{Parts, Rest};
use forebay_planner::physical::resumable::{Cut, Elsewhere, check_repeatable, cut, stage_models};
use forebay_planner::sql::job_statement::Resume;
use forebay_scheduler::client::cluster_exec::ClusterExec;
use forebay_scheduler::tables::rows::{Epoch, job_name};
use tokio::runtime::Handle;
use tonic::Status;

use super::detached;
use super::job_rows::{Explained, explained};
use super::plan::{Execution, Kind};
use super::session::Session;
use super::statement::{Planned, Prepared};
use crate::flight::jobs::pins::Pins;
use crate::flight::jobs::saved::{Begun, Document, Saved};
use crate::flight::jobs::{About, Job};
use crate::flight::status::{self, as_error};

/// What names of options begin with whose values open a store.
const KEYS_OF_STORES: [&str; 5] = ["aws.", "gcp.", "azure.", "oss.", "cos."];

/// A write, planned in parts.
struct InParts {
    cut: Cut,
    pins: Pins,
    context: Arc<TaskContext>,
    part_bytes: u64,
}

impl InParts {
    /// What of this folder would be kept.
    async fn overview(&self, remains: &Remains) -> Result<Overview> {
        let (Cut { target, inputs, .. }, part_bytes) = (&self.cut, self.part_bytes);
        let (fingerprint, rest) = (&self.pins.fingerprint(), self.pins.rest_fingerprint());
        let rest = rest.as_deref();
        let of = Looked { target, inputs, fingerprint, rest, part_bytes };
        remains.overview(of, &self.context).await
    }

    /// What is kept, in words.
    fn kept(&self) -> Option<String> {
        let rest = self.cut.rest.as_ref()?;
        let models: Vec<&str> = self.cut.models.keys().map(String::as_str).collect();
        Some(match (rest.is_same_rows, models.as_slice()) {
            (true, _) => "rows, of which one file is made at the end".to_owned(),
            (false, models) => format!("rows with what {} gave", models.join(" and ")),
        })
    }

    /// What is made of that at the end.
    fn made(&self) -> Option<&'static str> {
        Some(match self.cut.rest.as_ref()?.is_same_rows {
            true => "the file, of all of these rows",
            false => "the rest of the statement, of all of these rows",
        })
    }

    /// What runs, with what is left of it in this folder.
    fn execution(self, remains: Remains) -> Execution {
        let Cut { whole, target, inputs, pinned, plans, rest, .. } = self.cut;
        let (fingerprint, part_bytes) = (self.pins.fingerprint(), self.part_bytes);
        let rest = rest.zip(self.pins.rest_fingerprint());
        let rest = rest.map(|(rest, fingerprint)| {
            let (plan, inputs) = (rest.plan, rest.inputs);
            Rest { plan, inputs, fingerprint }
        });
        let parts = Parts { target, inputs, pinned, plans, fingerprint, part_bytes, remains, rest };
        Execution { plan: Arc::new(InPartsExec::new(whole, parts)), context: self.context }
    }
}

/// Saves what is submitted, so that it can be resumed, and lets it run.
///
/// # Errors
/// If it could not be resumed, and what keeps it from running.
pub(super) async fn submit(
    session: &Arc<Session>,
    own: Arc<Session>,
    prepared: &Prepared,
    values: &[ScalarValue],
    id: String,
) -> Result<Arc<Job>> {
    let saved = Arc::clone(session.jobs.saved().map_err(as_error)?);
    let Some(submitted) = prepared.submits() else {
        return internal_err!("SUBMIT has nothing to submit");
    };
    if !values.is_empty() {
        return plan_err!(
            "a job that can be resumed is saved as its text: write the values into it in place of the \
             parameters, or SET forebay.resumable = false"
        );
    }
    let planned = planned(&own, submitted).await?;
    let remains = Remains::begin(&planned.cut.target, &planned.context).await?;
    let (session, submitted) = (Arc::clone(session), Arc::clone(submitted));
    let document = Document::new(Begun {
        id: &id,
        statement: prepared.source(),
        name: job_name(&submitted.text()),
        user: session.slots.user(),
        begun_ms: Epoch::now().0,
        options: &own.options(),
        write_id: own.write_id().unwrap_or_default(),
        remains,
        pins: planned.pins.clone(),
    });
    let begun = async move {
        let job = match saved.put(&document).await {
            Ok(()) => run(&session, &own, &submitted, planned, &saved, document.clone(), None),
            Err(error) => Err(error),
        };
        if job.is_err() {
            // Nobody was told that there is such a job.
            saved.remove(&id).await.ok();
            document.remains.remove(&own.context.session().runtime_env()).await.ok();
        }
        job
    };
    // What is saved runs, even if whoever submitted it does not wait for the answer.
    let begun = Handle::current().spawn(begun).await;
    begun.map_err(|error| DataFusionError::External(Box::new(error)))?
}

/// Goes on with a job.
///
/// # Errors
/// If there is nothing to go on with, or what it was made of is another one and shall not be.
pub(super) async fn resume(session: &Arc<Session>, resume: &Resume) -> Result<Arc<Job>> {
    let Again { job, own, prepared, planned, saved, document } = again(session, &resume.id).await?;
    let differences = document.pins.differences(&planned.pins);
    // What is being committed needs none of it, and may be what is read.
    let is_committed = || async {
        Ok::<_, DataFusionError>(planned.overview(&document.remains).await?.is_committed)
    };
    if !differences.is_empty() && !resume.anew && !is_committed().await? {
        let id = &resume.id;
        return plan_err!(
            "job '{id}' would not go on with what it began with: {}. RESUME JOB '{id}' ANEW takes it as it is now, \
             and computes again what that changes (EXPLAIN RESUME JOB '{id}' ANEW says how much is kept)",
            differences.join("; ")
        );
    }
    let Some(submitted) = prepared.submits() else {
        return internal_err!("job '{}' has nothing to run", resume.id);
    };
    run(session, &own, submitted, planned, &saved, document, Some(&job))
}

/// Says what would be kept of a job.
///
/// # Errors
/// As [`resume`], but for what is another one by now: that is said.
pub(super) async fn explain(session: &Arc<Session>, resume: &Resume) -> Result<RecordBatch> {
    let Again { planned, document, .. } = again(session, &resume.id).await?;
    let differences = document.pins.differences(&planned.pins);
    let found = planned.overview(&document.remains).await?;
    let url = document.remains.url();
    let place = match (found.is_there, planned.kept()) {
        (true, None) => format!("in {url}"),
        (true, Some(what)) => format!("{what}, in {url}"),
        (false, _) => format!("{url} is gone, removed by `forebay gc` or by hand"),
    };
    let [parts, files, rows, bytes] =
        [found.parts as u64, found.files as u64, found.rows, found.bytes].map(Some);
    if found.is_committed {
        // All of its rows, whatever it was made of is by now.
        let detail = format!("it was being committed, and RESUME JOB completes that; {place}");
        let counts = [parts, files, rows, None];
        return explained(&[Explained { what: "committed", counts, detail: Some(detail) }]);
    }
    let to_run = [Some(found.missing as u64), None, None, Some(found.missing_bytes)];
    let kept = [parts, files, rows, bytes];
    let mut all = vec![
        Explained { what: "kept", counts: kept, detail: Some(place) },
        Explained { what: "to run", counts: to_run, detail: None },
    ];
    all.extend(planned.made().map(|detail| of_rest(detail, found.rest)));
    if found.unfit > 0 {
        let counts = [Some(found.unfit as u64), None, None, None];
        let detail = "parts that are not whole, or made of something else".to_owned();
        all.push(Explained { what: "dropped", counts, detail: Some(detail) });
    }
    let what = if resume.anew { "made anew" } else { "differs" };
    let differs = differences.into_iter();
    all.extend(differs.map(|detail| Explained {
        what,
        detail: Some(detail),
        ..Explained::default()
    }));
    explained(&all)
}

/// What becomes of what is made of staged rows, of which there may be files and rows already.
fn of_rest(detail: &str, made: Option<(usize, u64)>) -> Explained {
    let (what, counts) = match made {
        Some((files, rows)) => ("kept", [None, Some(files as u64), Some(rows), None]),
        None => ("to run", [None; 4]),
    };
    Explained { what, counts, detail: Some(detail.to_owned()) }
}

/// Drops what is kept of a job, also of what it wrote, if that is not committed.
///
/// # Errors
/// If there is no such job, or it runs.
pub(super) async fn forget(session: &Arc<Session>, id: &str) -> Result<Arc<Job>> {
    let forgetting = session.jobs.forget(&session.who, id).map_err(as_error)?;
    if forgetting.job().waits_to_be_resumed()
        && let Ok(saved) = session.jobs.saved()
        && let Some(document) = saved.find(id).await?
    {
        document.remains.remove(&session.context.session().runtime_env()).await?;
        saved.remove(id).await?;
    }
    // If something of it could not be removed, somebody tries again.
    Ok(forgetting.done())
}

/// A job that is over, planned once more.
struct Again {
    job: Arc<Job>,
    own: Arc<Session>,
    prepared: Prepared,
    planned: InParts,
    saved: Arc<Saved>,
    document: Document,
}

async fn again(session: &Arc<Session>, id: &str) -> Result<Again> {
    let job = session.jobs.resumable(&session.who, id).map_err(as_error)?;
    let saved = Arc::clone(session.jobs.saved().map_err(as_error)?);
    let document = saved.get(id).await?;
    let options = saved.options(&document, &session.options());
    let own = Arc::new(session.resumed(&document.write_id, &options)?);
    let planned = async {
        let prepared = Prepared::new(&own, &document.statement).await.map_err(as_error)?;
        let Some(submitted) = prepared.submits() else {
            return internal_err!("its statement submits nothing");
        };
        let planned = planned(&own, submitted).await?;
        Ok((prepared, planned))
    };
    let (prepared, planned) = planned.await.map_err(|error| {
        let why = status::of(&error);
        let said = format!("job '{id}' cannot be resumed: {}", why.message());
        as_error(Status::new(why.code(), said))
    })?;
    Ok(Again { job, own, prepared, planned, saved, document })
}

/// Plans what is submitted in parts.
async fn planned(own: &Arc<Session>, submitted: &Prepared) -> Result<InParts> {
    if submitted.kind != Kind::Update {
        return plan_err!(
            "this job could not be resumed: it writes no files; COPY its rows, or SET forebay.resumable = false"
        );
    }
    check_secrets(submitted)?;
    own.plan_in_parts()?;
    let digest = Arc::new(OnceLock::new());
    let noted = Arc::clone(&digest);
    let change = move |_: &Session, rows: DataFrame| {
        check_repeatable(rows.logical_plan())?;
        noted.set(Pins::digest_of(rows.logical_plan())).ok();
        Ok(rows)
    };
    let options = own.forebay();
    let stages = options.stage_models;
    let place = move |plan| if stages { stage_models(plan) } else { Ok(plan) };
    let planned = submitted.planned(own, &[], change, place);
    let Planned::Rows(Execution { plan, context }) = planned.await? else {
        return plan_err!(
            "this job could not be resumed: it makes a table in memory, which ends with the server; COPY its \
             rows, or SET forebay.resumable = false"
        );
    };
    // What runs elsewhere gives the same rows.
    let is_of = &|plan: &dyn ExecutionPlan| plan.is::<ClusterExec>();
    let cut = cut(&plan, Elsewhere { is_of, has_files: options.write_on_workers })?;
    let rest = cut.rest.as_ref();
    let pins = Pins {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan: digest.get().cloned().unwrap_or_default(),
        target: cut.target.identity(),
        format: cut.target.options(),
        reads: cut.reads.clone(),
        models: cut.models.clone(),
        options: Pins::options_of(&own.options()),
        inputs: cut.inputs.files.iter().map(|file| file.input.clone()).collect(),
        pinned: cut.pinned.clone(),
        staged: rest.map(|rest| rest.staged.clone()).unwrap_or_default(),
        rest_reads: rest.map(|rest| rest.reads.clone()).unwrap_or_default(),
        rest: rest.map(|rest| rest.inputs.clone()).unwrap_or_default(),
    };
    let part_bytes = options.part_bytes as u64;
    Ok(InParts { cut, pins, context, part_bytes })
}

/// What is saved can be read by whoever can read the server's files.
fn check_secrets(submitted: &Prepared) -> Result<()> {
    let Some(SqlStatement::CopyTo(copy)) = submitted.sql() else { return Ok(()) };
    let is_key = |key: &str| {
        let key = key.to_lowercase();
        KEYS_OF_STORES.iter().any(|store| key.starts_with(store))
    };
    match copy.options.iter().find(|(key, _)| is_key(key)) {
        None => Ok(()),
        Some((key, _)) => plan_err!(
            "this job could not be resumed: its text would be saved with '{key}' in it; let the server have the \
             keys of the store in its environment, or SET forebay.resumable = false"
        ),
    }
}

/// Lets a job run that has been saved, in place of an earlier one if it goes on with that.
fn run(
    session: &Arc<Session>,
    own: &Arc<Session>,
    submitted: &Arc<Prepared>,
    planned: InParts,
    saved: &Arc<Saved>,
    document: Document,
    earlier: Option<&Arc<Job>>,
) -> Result<Arc<Job>> {
    let about = About {
        id: document.id.clone(),
        who: session.who.clone(),
        user: document.user.clone(),
        name: document.name.clone(),
        session: own.context.session().session_id(),
        is_resumable: true,
    };
    let (own, submitted, saved) = (Arc::clone(own), Arc::clone(submitted), Arc::clone(saved));
    let work = move |job| async move {
        let (id, remains) = (document.id.clone(), document.remains.clone());
        let document = document.begun_again(planned.pins.clone());
        let failed = |error: DataFusionError| status::of(&error);
        saved.put(&document).await.map_err(failed)?;
        let execution = Planned::Rows(planned.execution(remains.clone()));
        match detached::run(Arc::clone(&own), submitted, execution, job).await {
            Ok(rows) => {
                ended(&own, &saved, &id, &remains).await;
                Ok(rows)
            }
            Err(why) => Err(Status::new(
                why.code(),
                format!("{}; RESUME JOB '{id}' goes on with it", why.message()),
            )),
        }
    };
    session.jobs.submit(about, earlier, work).map_err(as_error)
}

/// It is committed: first nobody can resume it any more, then nobody needs to.
async fn ended(own: &Session, saved: &Saved, id: &str, remains: &Remains) {
    let removed = match saved.remove(id).await {
        Ok(()) => remains.remove(&own.context.session().runtime_env()).await,
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!(job = %id, "it has finished, and something of it is left: {error}");
    }
}
