//! Who has guessed wrong, and must wait: from one address a growing time for one user, so that
//! nobody can lock that user out from elsewhere, and a short time for all users.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tonic::Status;

/// How often one may be wrong before one must wait, and for how long at most. The first pause is a
/// second, and each is twice as long as the one before.
struct Rule {
    free: u32,
    pause_max: Duration,
}

/// For one user, from one address.
const USER: Rule = Rule { free: 5, pause_max: Duration::from_secs(5 * 60) };

/// For all users, from one address, behind which many people may be.
const ADDRESS: Rule = Rule { free: 20, pause_max: Duration::from_secs(8) };

/// After so long without another one, failures are forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15 * 60);

/// Those who have failed, of whom something is remembered. Beyond it the one who waits least goes.
const KNOWN_MAX: usize = 10_000;

/// Passwords that wait to be checked: of all, and of one address.
const WAITING_MAX: usize = 256;
const WAITING_OF_ADDRESS_MAX: usize = 64;

/// Failures so far, and attempts that are being made.
#[derive(Default)]
pub(super) struct Attempts {
    state: Mutex<State>,
    /// Names are as long as clients like; nobody can foresee the hashes of two.
    hasher: RandomState,
}

#[derive(Default)]
struct State {
    failures: HashMap<Key, Failures>,
    waiting: HashMap<IpAddr, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    User(IpAddr, u64),
    Address(IpAddr),
}

#[derive(Clone, Copy)]
struct Failures {
    number: u32,
    last: Instant,
}

impl Rule {
    fn pause(&self, failures: u32) -> Duration {
        match failures.checked_sub(self.free) {
            None => Duration::ZERO,
            Some(more) => Duration::from_secs(1 << more.min(30)).min(self.pause_max),
        }
    }
}

impl Key {
    fn rule(&self) -> &'static Rule {
        match self {
            Self::User(..) => &USER,
            Self::Address(_) => &ADDRESS,
        }
    }
}

impl Failures {
    /// Until when the next attempt must wait.
    fn until(&self, rule: &Rule) -> Instant {
        self.last + rule.pause(self.number)
    }
}

/// A password that is being checked, until it is dropped.
pub(super) struct Attempt {
    attempts: Arc<Attempts>,
    user: Key,
    address: IpAddr,
}

impl Attempts {
    /// Begins an attempt.
    ///
    /// # Errors
    /// If whoever makes it must wait, or too many are being made.
    pub(super) fn begin(self: &Arc<Self>, name: &str, from: IpAddr) -> Result<Attempt, Status> {
        let address = network(from);
        let user = Key::User(address, self.hasher.hash_one(name));
        let mut state = self.state.lock();
        state.check(&[user, Key::Address(address)], Instant::now())?;
        let all: usize = state.waiting.values().sum();
        let own = state.waiting.entry(address).or_default();
        if all >= WAITING_MAX || *own >= WAITING_OF_ADDRESS_MAX {
            return Err(Status::resource_exhausted(
                "too many passwords wait to be checked; try again in a few seconds",
            ));
        }
        *own += 1;
        Ok(Attempt { attempts: Arc::clone(self), user, address })
    }

    pub(super) fn sweep(&self) {
        let mut state = self.state.lock();
        state.failures.retain(|_, failures| failures.last.elapsed() < FORGOTTEN_AFTER);
        state.waiting.retain(|_, waiting| *waiting > 0);
    }
}

impl Attempt {
    /// Fails if others have guessed wrong since it began, and it must wait as well.
    pub(super) fn check(&self) -> Result<(), Status> {
        let keys = [self.user, Key::Address(self.address)];
        self.attempts.state.lock().check(&keys, Instant::now())
    }

    /// It was right, or wrong.
    pub(super) fn ends(self, was_right: bool) {
        let mut state = self.attempts.state.lock();
        if was_right {
            // Other users' failures from the same address stay.
            state.failures.remove(&self.user);
            return;
        }
        let now = Instant::now();
        state.count(self.user, now);
        state.count(Key::Address(self.address), now);
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(waiting) = self.attempts.state.lock().waiting.get_mut(&self.address) {
            *waiting = waiting.saturating_sub(1);
        }
    }
}

impl State {
    fn check(&self, keys: &[Key], now: Instant) -> Result<(), Status> {
        let until = |key: &Key| self.failures.get(key).map(|found| found.until(key.rule()));
        let Some(until) = keys.iter().filter_map(until).max() else { return Ok(()) };
        let pause = until.saturating_duration_since(now);
        if pause.is_zero() {
            return Ok(());
        }
        Err(Status::resource_exhausted(format!(
            "too many wrong passwords from this address; try again in {} s",
            pause.as_secs() + 1
        )))
    }

    fn count(&mut self, key: Key, now: Instant) {
        if self.failures.len() >= KNOWN_MAX && !self.failures.contains_key(&key) {
            let soonest = self.failures.iter().min_by_key(|(key, found)| found.until(key.rule()));
            if let Some(key) = soonest.map(|(key, _)| *key) {
                self.failures.remove(&key);
            }
        }
        let found = self.failures.entry(key).or_insert(Failures { number: 0, last: now });
        let is_old = now.saturating_duration_since(found.last) >= FORGOTTEN_AFTER;
        let before = if is_old { 0 } else { found.number };
        *found = Failures { number: before.saturating_add(1), last: now };
    }
}

/// Of version 6, each customer of a provider has 2^64 addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        version_4 => version_4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    /// How many of so many wrong guesses are heard.
    fn heard(attempts: &Arc<Attempts>, name: impl Fn(usize) -> String, from: IpAddr) -> usize {
        let guess = |at| attempts.begin(&name(at), from).map(|attempt| attempt.ends(false));
        (0..100).filter(|at| guess(*at).is_ok()).count()
    }

    #[test]
    fn whoever_guesses_must_wait_and_nobody_else() {
        let attempts = Arc::<Attempts>::default();
        assert_eq!(heard(&attempts, |_| "ada".to_owned(), HERE), 5);
        let error = attempts.begin("ada", HERE).err().unwrap();
        assert!(error.message().contains("try again in 1 s"), "{error}");
        attempts.begin("ada", THERE).unwrap().ends(true);
        attempts.begin("eve", HERE).unwrap().ends(true);
        assert_eq!(heard(&attempts, |at| format!("user{at}"), HERE), 15);
        assert!(attempts.begin("eve", HERE).is_err() && attempts.begin("eve", THERE).is_ok());
    }

    #[test]
    fn a_right_password_after_a_few_wrong_ones_begins_anew() {
        let attempts = Arc::<Attempts>::default();
        for _ in 0..4 {
            attempts.begin("ada", HERE).unwrap().ends(false);
        }
        attempts.begin("ada", HERE).unwrap().ends(true);
        assert_eq!(heard(&attempts, |_| "ada".to_owned(), HERE), 5);
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let seconds = |failures| USER.pause(failures).as_secs();
        assert_eq!([4, 5, 6, 7, 13, 14, u32::MAX].map(seconds), [0, 1, 2, 4, 256, 300, 300]);
    }

    #[test]
    fn what_waits_and_what_is_remembered_is_bounded() {
        let attempts = Arc::<Attempts>::default();
        let begun: Vec<_> = (0..100).map_while(|_| attempts.begin("ada", HERE).ok()).collect();
        assert_eq!(begun.len(), WAITING_OF_ADDRESS_MAX);
        drop(begun);
        for number in 0..KNOWN_MAX as u32 / 2 + 100 {
            let from = IpAddr::V4(std::net::Ipv4Addr::from_bits(number));
            attempts.begin("ada", from).unwrap().ends(false);
        }
        assert!(attempts.state.lock().failures.len() <= KNOWN_MAX);
        attempts.sweep();
        assert!(attempts.state.lock().waiting.is_empty());
    }

    #[test]
    fn an_address_stands_for_its_network() {
        let same = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| network(text.parse().unwrap()));
        assert_eq!(same[0], same[1]);
        assert_ne!(same[0], network("2001:db8:0:1::1".parse().unwrap()));
        assert_eq!(network("::ffff:10.0.0.1".parse().unwrap()), HERE);
    }
}
