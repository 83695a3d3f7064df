//! Runs queries by their numbers, shrinks those that are wrong, and counts.

use std::cell::RefCell;
use std::io::Write;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::test_runner::{RngSeed, TestError, TestRunner};
use tokio::runtime::Runtime;

use super::oracle::{Case, Verdict};
use super::settings;

/// Numbers of the longest query.
const NUMBERS_MAX: usize = 120;

fn cases() -> impl Strategy<Value = Case> {
    let settings = [settings::SETTINGS, settings::OF_CLUSTERS].concat();
    // The first shrinks first.
    let settings = subsequence(settings, 0..12);
    (settings, any::<bool>(), vec(any::<u16>(), 0..NUMBERS_MAX))
        .prop_map(|(settings, is_sent, query)| Case { query, settings, is_sent })
}

pub(super) fn is_long() -> bool {
    std::env::var("FOREBAY_RANDOM").is_ok_and(|set| set == "long")
}

/// The numbers of the queries.
pub(in crate::api) fn seeds(short: u64, long: u64) -> std::ops::Range<u64> {
    let first = std::env::var("FOREBAY_RANDOM_SEED").ok().map(|seed| seed.parse().unwrap());
    let count = match (is_long(), first) {
        (true, _) => long,
        (false, Some(_)) => 1,
        (false, None) => short,
    };
    let first = first.unwrap_or(1);
    first..first + count
}

/// Past those who keep what tests print.
fn report(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

/// Says what a query is: of its numbers, its options, and whether its plans are sent.
pub(in crate::api) trait Judge {
    fn judge(&self, case: &Case) -> impl Future<Output = Verdict>;
}

/// What came of all queries.
#[derive(Debug, Default)]
pub(in crate::api) struct Count {
    equal: usize,
    refused: Vec<String>,
    not_ours: Vec<String>,
    wrong: Vec<String>,
}

impl Count {
    pub(in crate::api) fn run(
        runtime: &Runtime,
        world: &impl Judge,
        test: &str,
        seeds: std::ops::Range<u64>,
    ) -> Self {
        let mut count = Self::default();
        for seed in seeds {
            count.try_seed(runtime, world, test, seed);
        }
        count
    }

    /// One query, which shrinks if it is wrong.
    fn try_seed(&mut self, runtime: &Runtime, world: &impl Judge, test: &str, seed: u64) {
        let config = ProptestConfig {
            cases: 1,
            rng_seed: RngSeed::Fixed(seed),
            failure_persistence: None,
            max_shrink_iters: 200,
            ..ProptestConfig::default()
        };
        // What the whole query is; what it shrinks to must be of that kind.
        let first = RefCell::new(None);
        let result = TestRunner::new(config).run(&cases(), |case| {
            let verdict = runtime.block_on(world.judge(&case));
            let mut first = first.borrow_mut();
            let kind = match (&verdict, &*first) {
                (Verdict::Wrong(finding), Some(Verdict::Wrong(whole))) => {
                    Some(finding).filter(|finding| finding.kind == whole.kind)
                }
                (Verdict::Wrong(finding), None) => Some(finding),
                _ => None,
            };
            let result = match kind {
                Some(finding) => Err(TestCaseError::fail(finding.to_string())),
                None => Ok(()),
            };
            first.get_or_insert(verdict);
            result
        });
        let again =
            format!("FOREBAY_RANDOM_SEED={seed} cargo test --workspace --test api -- {test}");
        if let Err(TestError::Fail(reason, _)) = result {
            report(&format!("{again}\n{reason}"));
            self.wrong.push(format!("{again}\n{reason}"));
            return;
        }
        match first.into_inner() {
            Some(Verdict::Refused(error)) => self.refused.push(format!("{again}\n{error}")),
            Some(Verdict::NotOurs(finding)) => self.not_ours.push(format!("{again}\n{finding}")),
            _ => self.equal += 1,
        }
    }

    pub(in crate::api) fn check(self) {
        let all = self.equal + self.refused.len() + self.not_ours.len() + self.wrong.len();
        report(&format!(
            "{all} queries: {} equal, {} that DataFusion refuses, {} for which it gives other rows by \
             itself, {} wrong",
            self.equal,
            self.refused.len(),
            self.not_ours.len(),
            self.wrong.len()
        ));
        // Of the short set, what is not compared is always the same.
        if is_long() {
            self.refused.iter().for_each(|refused| report(&format!("refused: {refused}")));
            self.not_ours.iter().for_each(|not_ours| report(&format!("not ours: {not_ours}")));
        }
        assert!(self.wrong.is_empty(), "{} queries are wrong, see above", self.wrong.len());
        // What is not compared shows nothing.
        let not_compared = [self.refused, self.not_ours].concat();
        assert!(
            all == 1 || not_compared.len() * 10 <= all,
            "too few queries of {all} are compared: {not_compared:#?}"
        );
    }
}
