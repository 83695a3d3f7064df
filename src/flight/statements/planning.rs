//! Where statements of clients are parsed and planned: on threads of their own, so that those which
//! answer everyone go on, whatever a statement is.
//!
//! A thread that plans cannot be ended from outside. So each user has a few of them at a time, is told
//! after a while that it takes too long, and waits for a turn until the thread is done. How long that
//! can be is bounded by what a statement may consist of: `planner/src/sql/depth.rs`, `limits::uses` and
//! `limits::sizes`.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, LazyLock, Weak};
use std::thread;
use std::time::Duration;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, plan_datafusion_err};
use forebay_planner::bounded;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;

use super::session::Session;

/// Statements that are planned at a time, of all users and of one: what one does not get is left for
/// others.
const THREADS_MAX: usize = 8;
const THREADS_OF_ONE_MAX: usize = 2;

/// For so long a client waits, its turn included. Stores that are listed take their time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Several times what a statement takes that may be so deep.
const STACK_BYTES: usize = 64 << 20;

/// Of this process, whose cores all of its servers share.
static TURNS: LazyLock<Turns> = LazyLock::new(|| Turns {
    all: Arc::new(Semaphore::new(THREADS_MAX)),
    of_users: Mutex::default(),
});

struct Turns {
    all: Arc<Semaphore>,
    /// As long as somebody plans or waits.
    of_users: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// The right to plan one statement.
struct Turn {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Turns {
    fn of_user(&self, name: String) -> Arc<Semaphore> {
        let mut of_users = self.of_users.lock();
        if let Some(own) = of_users.get(&name).and_then(Weak::upgrade) {
            return own;
        }
        of_users.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(THREADS_OF_ONE_MAX));
        of_users.insert(name, Arc::downgrade(&own));
        own
    }

    async fn next(&self, name: String) -> Result<Turn> {
        let closed = |_| exec_datafusion_err!("nothing is planned any more");
        let own = self.of_user(name).acquire_owned().await.map_err(closed)?;
        let of_all = Arc::clone(&self.all).acquire_owned().await.map_err(closed)?;
        Ok(Turn { _own: own, _of_all: of_all })
    }
}

/// Whose turn it is: a user's in all its sessions, and a session's where nobody is asked for a name.
fn user(session: &Session) -> String {
    session.slots.user().map_or_else(|| session.id.to_string(), str::to_owned)
}

/// Parses or plans something for a client, when it is its turn.
///
/// # Errors
/// If that takes too long, and what `work` fails with.
pub(in crate::flight) async fn run<T, W>(
    session: &Arc<Session>,
    work: impl FnOnce(Arc<Session>) -> W,
) -> Result<T>
where
    T: Send + 'static,
    W: Future<Output = Result<T>> + Send + 'static,
{
    let given_up = CancellationToken::new();
    // Whoever stops waiting ends it where it waits itself.
    let _gives_up = given_up.clone().drop_guard();
    let work = given_up.run_until_cancelled_owned(Box::pin(work(Arc::clone(session))));
    let mut has_turn = false;
    let planned = async {
        let turn = TURNS.next(user(session)).await?;
        has_turn = true;
        on_thread(turn, work).await
    };
    match tokio::time::timeout(PATIENCE, planned).await {
        Ok(planned) => planned,
        Err(_) => Err(too_long(has_turn)),
    }
}

async fn on_thread<T: Send + 'static>(
    turn: Turn,
    work: impl Future<Output = Option<Result<T>>> + Send + 'static,
) -> Result<T> {
    let (answer, planned) = oneshot::channel();
    let runtime = Handle::current();
    let thread = thread::Builder::new().name("planning".to_owned()).stack_size(STACK_BYTES);
    let plan = move || {
        let _turn = turn;
        let planned = bounded::with_budget(|| runtime.block_on(work));
        // Nobody may wait for it any more.
        planned.and_then(|planned| answer.send(planned).ok());
    };
    thread.spawn(plan).map_err(|error| exec_datafusion_err!("a thread to plan on: {error}"))?;
    // It ends without an answer by a panic, of which the log has more.
    planned.await.map_err(|_| exec_datafusion_err!("planning the statement broke off"))?
}

fn too_long(has_turn: bool) -> DataFusionError {
    let seconds = PATIENCE.as_secs();
    if has_turn {
        plan_datafusion_err!(
            "the statement was not planned within {seconds} seconds; write it in parts, or shorter \
             expressions"
        )
    } else {
        plan_datafusion_err!(
            "the statement was not planned, as others were before it for {seconds} seconds: a user \
             has {THREADS_OF_ONE_MAX} planned at a time, and all together {THREADS_MAX}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn one_user_leaves_turns_to_others() {
        let turns = Turns { all: Arc::new(Semaphore::new(3)), of_users: Mutex::default() };
        let next = |name: &str| turns.next(name.to_owned());
        let (first, second) = (next("a").await.unwrap(), next("a").await.unwrap());
        let mut third = Box::pin(next("a"));
        assert!(futures::poll!(&mut third).is_pending(), "a user has all turns");
        let _other = next("b").await.unwrap();
        assert!(
            futures::poll!(Box::pin(next("c"))).is_pending(),
            "there are more turns than three"
        );
        drop(first);
        let third = third.await.unwrap();
        drop((third, second));
        next("d").await.unwrap();
        assert!(!turns.of_users.lock().contains_key("a"), "who plans nothing is remembered");
    }

    #[tokio::test]
    async fn a_turn_lasts_as_long_as_its_thread() {
        let turns = Turns { all: Arc::new(Semaphore::new(1)), of_users: Mutex::default() };
        let turn = turns.next("a".to_owned()).await.unwrap();
        let (end, ended) = mpsc::sync_channel(1);
        let work = Box::pin(on_thread(turn, async move {
            ended.recv().ok();
            Some(Ok(()))
        }));
        // Whoever waited has gone.
        assert!(tokio::time::timeout(Duration::from_millis(1), work).await.is_err());
        assert_eq!(turns.all.available_permits(), 0);
        end.send(()).unwrap();
        turns.next("a".to_owned()).await.unwrap();
    }
}
