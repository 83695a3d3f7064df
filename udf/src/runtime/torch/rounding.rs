//! Whether libtorch may round factors of fp32 products to TF32 on a GPU: a setting of the process, which it
//! reads when a product is started.
//!
//! Models that may round and models that must not take turns: those of one kind start their products side by
//! side, and those of the other wait until all of these have started theirs. Neither waits for ever: once one
//! waits, nobody joins the others. Nobody waits for anything else inside, so a lease may be held. Where no model
//! asks for TF32, nobody ever waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::shim;

/// Has libtorch round, or not.
type Set = fn(bool) -> Result<(), shim::Failure>;

/// Who may start products at this moment.
pub(super) struct Turns {
    set: Set,
    state: Mutex<State>,
    turned: Condvar,
}

#[derive(Default)]
struct State {
    /// Whose turn it is: of those that round?
    rounds: bool,
    /// What libtorch was told.
    told: bool,
    inside: usize,
    /// Of those that do not round, and of those that do.
    waiting: [usize; 2],
    /// How often the turn has changed.
    changes: u64,
}

/// One that starts products, as long as it is held.
pub(super) struct Turn<'a>(&'a Turns);

/// Those of this process. libtorch was told not to round when it was loaded.
pub(super) static TURNS: Turns = Turns::new(shim::allow_tf32);

impl Turns {
    const fn new(set: Set) -> Self {
        let state = State { rounds: false, told: false, inside: 0, waiting: [0; 2], changes: 0 };
        Self { set, state: Mutex::new(state), turned: Condvar::new() }
    }

    /// Waits for its turn.
    ///
    /// # Errors
    /// libtorch's, if it does not take the setting.
    pub(super) fn enter(&self, rounds: bool) -> Result<Turn<'_>, shim::Failure> {
        let mut state = self.lock();
        let others_wait = state.waiting[usize::from(!rounds)] > 0;
        if state.inside == 0 {
            state.rounds = rounds;
            state.inside = 1;
        } else if state.rounds == rounds && !others_wait {
            state.inside += 1;
        } else {
            state.waiting[usize::from(rounds)] += 1;
            let until = state.changes + if state.rounds == rounds { 2 } else { 1 };
            // Whoever changes the turn counts this one in.
            let is_early = |state: &mut State| state.changes < until;
            state = self.turned.wait_while(state, is_early).unwrap_or_else(PoisonError::into_inner);
        }
        let turn = Turn(self);
        if state.told != rounds {
            let set = (self.set)(rounds);
            if set.is_ok() {
                state.told = rounds;
            }
            // Given back by the turn, which locks by itself.
            drop(state);
            set?;
        }
        Ok(turn)
    }

    /// No panic leaves the state between two of its own.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inside -= 1;
        let others = usize::from(!state.rounds);
        if state.inside == 0 && state.waiting[others] > 0 {
            state.rounds = !state.rounds;
            state.inside = std::mem::take(&mut state.waiting[others]);
            state.changes += 1;
            self.0.turned.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use super::*;

    #[test]
    fn everyone_computes_in_its_own_mode_and_nobody_waits_for_ever() {
        static ROUNDS: AtomicBool = AtomicBool::new(false);
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let turns = Turns::new(|rounds| {
            CALLS.fetch_add(1, SeqCst);
            ROUNDS.store(rounds, SeqCst);
            Ok(())
        });
        let done = AtomicUsize::new(0);
        thread::scope(|scope| {
            for at in 0..6 {
                let (turns, done) = (&turns, &done);
                scope.spawn(move || {
                    for step in 0..500 {
                        // Some change their mind, some never do.
                        let rounds = if at < 2 { step % 3 == 0 } else { at % 2 == 0 };
                        let turn = turns.enter(rounds).unwrap();
                        assert_eq!(ROUNDS.load(SeqCst), rounds);
                        thread::yield_now();
                        assert_eq!(ROUNDS.load(SeqCst), rounds);
                        drop(turn);
                        done.fetch_add(1, SeqCst);
                    }
                });
            }
        });
        assert_eq!(done.load(SeqCst), 3000);
        let state = turns.lock();
        assert_eq!((state.inside, state.waiting), (0, [0, 0]));
        assert!(CALLS.load(SeqCst) > 1);
    }

    #[test]
    fn models_of_one_kind_start_side_by_side_and_libtorch_is_told_nothing() {
        let turns = Turns::new(|_| panic!("nobody rounds"));
        let _first = turns.enter(false).unwrap();
        let _second = turns.enter(false).unwrap();
    }

    #[test]
    fn a_setting_that_is_refused_is_an_error_and_holds_nobody_up() {
        let turns = Turns::new(|_| Err("no".to_owned()));
        assert_eq!(turns.enter(true).err(), Some("no".to_owned()));
        assert!(turns.enter(false).is_ok());
        assert_eq!(turns.lock().inside, 0);
    }

    #[test]
    fn libtorch_takes_the_setting() {
        super::super::info().unwrap();
        drop(TURNS.enter(true).unwrap());
        drop(TURNS.enter(false).unwrap());
    }
}
