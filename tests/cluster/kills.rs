//! `kill -9` at many moments of a query.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay::ForebayContext;

use super::history::{self, Block, Recomputed, Task, Unit, units};
use super::setup::{ACCELERATOR, CPU, QUERY, Stage, Undisturbed, is_long, moments, report};

/// A cluster whose query lasts for more than half a minute in the long set.
fn stage() -> Stage {
    Stage::with_service(if is_long() { 160 } else { 12 }, 10, &[CPU, CPU, ACCELERATOR])
}

/// Kills the workers at these places at a moment of the query, starts others in their stead, and
/// compares the rows and what was computed again.
async fn killed_at(
    stage: &mut Stage,
    undisturbed: &Undisturbed,
    moment: f64,
    killed: &[(usize, &[&str])],
) -> Vec<usize> {
    let session = stage.session().await;
    let (running, since) = (stage.start(&session, QUERY), Instant::now());
    stage.reach(&running, moment, undisturbed).await;
    let before = Before::look(&session, stage, killed).await;
    for (at, _) in killed {
        stage.cluster.worker(*at).kill();
    }
    let killed_ms = now_ms();
    assert!(!running.is_over(), "the query was over before the workers were killed");
    let replaced: Vec<usize> =
        killed.iter().map(|(_, arguments)| stage.cluster.add_worker(arguments)).collect();
    let replaced_in = Duration::from_millis((now_ms() - killed_ms) as u64);
    let rows = stage.end(running).await;
    let took = since.elapsed();
    let rows = rows.unwrap_or_else(|error| panic!("{moment}: {error}\n{}", stage.cluster.said()));
    assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
    let after = After::look(&session, &before.job).await;
    after
        .check(&before)
        .unwrap_or_else(|wrong| panic!("{moment}: {wrong}\n{}", stage.cluster.said()));
    if is_long() {
        let what = match (killed, before.with_accelerator) {
            ([_], false) => "a CPU worker",
            ([_], true) => "the accelerator worker",
            _ => "both",
        };
        let line = after.line(undisturbed, &Times { killed_ms, took, replaced_in });
        report(&format!("killed {what} at {moment:.2}: {line}"));
    }
    replaced
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

/// What there was just before workers were killed.
struct Before {
    job: String,
    /// When it was looked at.
    at_ms: i64,
    workers: Vec<String>,
    /// Whether results may have been on them.
    with_accelerator: bool,
    blocks: Vec<Block>,
}

impl Before {
    async fn look(
        session: &ForebayContext,
        stage: &mut Stage,
        killed: &[(usize, &[&str])],
    ) -> Self {
        let names = killed.iter().map(|(at, _)| stage.cluster.worker(*at).name().to_owned());
        let (workers, at_ms) = (names.collect(), now_ms());
        let job = history::last_job(session).await;
        let blocks = history::blocks(session, &job).await;
        let with_accelerator = killed.iter().any(|(_, arguments)| *arguments == ACCELERATOR);
        Self { blocks, job, at_ms, workers, with_accelerator }
    }

    /// Whether a block had to be made again. One that was consumed only if its readers' output may
    /// be gone, too.
    fn demands(&self, block: &Block) -> bool {
        self.workers.contains(&block.worker)
            && (self.with_accelerator || ["sealed", "assigned"].contains(&block.state.as_str()))
    }
}

/// What has become of a job.
struct After {
    tasks: Vec<Task>,
    recomputed: Vec<Recomputed>,
}

impl After {
    async fn look(session: &ForebayContext, job: &str) -> Self {
        let tasks = history::tasks(session, job).await;
        Self { tasks, recomputed: history::recomputed(session, job).await }
    }

    /// The lineage demands what lay on the killed workers and was still to be read, and what ran
    /// there; nothing else may have run again.
    fn check(&self, before: &Before) -> Result<(), String> {
        let demanded = self.demanded(before);
        let again = units(self.recomputed.iter().map(|found| &found.unit));
        // Again once for each worker that was lost: the scheduler hears of one after the other.
        let times = |unit| self.recomputed.iter().filter(|found| found.unit == unit).count();
        let too_often = again.iter().any(|unit| times(*unit) > before.workers.len());
        if too_often || !again.is_subset(&demanded) {
            return Err(format!("{:?} ran again, demanded {demanded:?}", self.recomputed));
        }
        let has_to_do = |reason: &str| {
            let names_worker = before.workers.iter().any(|worker| reason.contains(worker));
            let known = ["was lost", "were lost", "runs again and reads it", "missing or corrupt"];
            names_worker || known.iter().any(|known| reason.contains(known))
        };
        if let Some(strange) = self.recomputed.iter().find(|found| !has_to_do(&found.reason)) {
            return Err(format!("{strange:?} has nothing to do with {:?}", before.workers));
        }
        let (finished, others): (Vec<_>, Vec<_>) =
            self.tasks.iter().partition(|task| task.state == "finished");
        let mut elsewhere = others.iter().filter(|task| !before.workers.contains(&task.worker));
        if let Some(strange) = elsewhere.find(|task| !has_to_do(&task.reason)) {
            return Err(format!("{strange:?} has nothing to do with {:?}", before.workers));
        }
        let (finished, again) = (finished.len(), self.recomputed.len());
        let units = units(self.tasks.iter().map(|task| &task.unit)).len();
        match finished <= units + again {
            true => Ok(()),
            false => {
                Err(format!("{finished} tasks ended well, of {units} units and {again} again"))
            }
        }
    }

    /// Units with a block that was lost and is needed, or that ran where it was lost.
    fn demanded(&self, before: &Before) -> BTreeSet<Unit> {
        let on_killed = self.tasks.iter().filter(|task| before.workers.contains(&task.worker));
        let late = on_killed.filter(|task| task.ended >= before.at_ms).map(|task| &task.unit);
        let lost = before.blocks.iter().filter(|block| before.demands(block));
        units(lost.map(|block| &block.unit).chain(late))
    }

    /// Time of tasks whose work was lost.
    fn lost(&self) -> Duration {
        let is_again = |task: &&Task| {
            let same = self.recomputed.iter().find(|found| found.unit == task.unit);
            same.is_some_and(|found| task.ended <= found.decided)
        };
        let lost = self.tasks.iter().filter(|task| task.state != "finished" || is_again(task));
        Duration::from_millis(lost.map(|task| (task.ended - task.started).max(0) as u64).sum())
    }

    /// How soon the scheduler acted.
    fn noticed(&self, killed_ms: i64) -> Duration {
        let lost = self.tasks.iter().filter(|task| task.state == "lost").map(|task| task.ended);
        let acted = lost.chain(self.recomputed.iter().map(|found| found.decided)).min();
        Duration::from_millis(acted.map_or(0, |at| (at - killed_ms).max(0)) as u64)
    }

    /// A line of the table that the long set prints. What a query may take: its undisturbed time,
    /// what passed until all workers were there again, and a third more than the work that was lost.
    fn line(&self, undisturbed: &Undisturbed, times: &Times) -> String {
        let (lost, noticed) = (self.lost(), self.noticed(times.killed_ms));
        let most = undisturbed.took + noticed + times.replaced_in + lost.mul_f64(1.35);
        let verdict = if times.took <= most { "within" } else { "OVER" };
        format!(
            "took {:.1} s, undisturbed {:.1} s, noticed in {:.3} s, replaced in {:.1} s, lost {:.1} s \
             of tasks, {} units again, {} tasks instead of {}; {verdict} {:.1} s",
            times.took.as_secs_f64(),
            undisturbed.took.as_secs_f64(),
            noticed.as_secs_f64(),
            times.replaced_in.as_secs_f64(),
            lost.as_secs_f64(),
            self.recomputed.len(),
            self.tasks.len(),
            undisturbed.tasks,
            most.as_secs_f64(),
        )
    }
}

/// What was measured of a query whose workers were killed.
struct Times {
    killed_ms: i64,
    took: Duration,
    replaced_in: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cpu_worker_is_killed() {
    let mut stage = stage();
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let mut cpu = 0;
    for moment in moments(&[0.4]) {
        cpu = killed_at(&mut stage, &undisturbed, moment, &[(cpu, CPU)]).await[0];
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_accelerator_worker_is_killed() {
    let mut stage = stage();
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let mut accelerator = 2;
    for moment in moments(&[0.6]) {
        let killed = [(accelerator, ACCELERATOR)];
        accelerator = killed_at(&mut stage, &undisturbed, moment, &killed).await[0];
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cpu_worker_and_the_accelerator_worker_are_killed() {
    let mut stage = stage();
    let undisturbed = stage.undisturbed(&stage.session().await).await;
    let (mut cpu, mut accelerator) = (0, 2);
    for moment in moments(&[0.5]) {
        let killed = [(cpu, CPU), (accelerator, ACCELERATOR)];
        let replaced = killed_at(&mut stage, &undisturbed, moment, &killed).await;
        (cpu, accelerator) = (replaced[0], replaced[1]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_workers_are_killed_and_none_comes() {
    let mut stage = Stage::new(3, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(1).await;
    stage.cluster.worker(0).kill();
    stage.cluster.worker(1).kill();
    let error = stage.end(running).await.unwrap_err().strip_backtrace();
    assert!(error.contains("there is no worker") && error.contains("none has come"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_only_accelerator_is_killed_and_none_comes() {
    let mut stage = Stage::new(3, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let running = stage.start(&session, QUERY);
    stage.until_tasks_run(2).await;
    stage.cluster.worker(1).kill();
    let error = stage.end(running).await.unwrap_err().strip_backtrace();
    assert!(error.contains("emulated") && error.contains("none has come for"), "{error}");
    stage.until_nothing_is_left(&[0]).await;
}
