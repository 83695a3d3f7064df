//! What a session sets, as operators on workers see it.

use std::collections::{BTreeMap, BTreeSet};

use datafusion::config::{ConfigOptions, ExtensionOptions};
use forebay::{ForebayConfig, ForebayContext};

use super::setup::{CPU, Stage, run};

/// One stage that writes blocks, and a hash shuffle before it.
const SHUFFLED: &str = "SELECT id % 3 AS part, count(*) FROM words GROUP BY part";

/// Another value of the same kind, if it is easy to tell which would do.
fn other(value: &str) -> Option<String> {
    match value {
        "true" => Some("false".to_owned()),
        "false" => Some("true".to_owned()),
        "reserve" => Some("off".to_owned()),
        "blocks" => Some("ballista".to_owned()),
        number => Some((number.parse::<u64>().ok()?.checked_add(1)?).to_string()),
    }
}

/// All options of a session, by key. `SHOW ALL` lists these.
fn options(session: &ForebayContext) -> BTreeMap<String, String> {
    let entries = session.session().copied_config().options().entries();
    entries.into_iter().filter_map(|entry| Some((entry.key, entry.value?))).collect()
}

/// What a process may take is its own: `--memory-limit` of workers.
const OF_THE_PROCESS: &str = "datafusion.runtime.";

/// DataFusion ignores it, and Ballista does not send it.
const IGNORED: &str = "datafusion.sql_parser.enable_options_value_normalization";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_option_of_a_session_reaches_the_operators_on_workers() {
    let mut stage = Stage::new(10, &[]);
    stage.cluster.add_worker_in(&[("RUST_LOG", "forebay_scheduler=debug")], CPU);
    let session = stage.session().await;
    let shown = run(&session, "SHOW ALL").await.unwrap();
    let (before, mut set) = (options(&session), BTreeSet::new());
    for (key, value) in shown.iter().filter_map(|row| row.split_once('|')) {
        let Some(value) = other(value).filter(|_| !key.starts_with(OF_THE_PROCESS)) else {
            continue;
        };
        run(&session, &format!("SET {key} = '{value}'")).await.ok();
        set.insert(key.to_owned());
    }
    for entry in ForebayConfig::default().entries() {
        assert!(set.contains(&entry.key), "{} was not walked", entry.key);
    }
    let rows = stage.run(&session, SHUFFLED).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", stage.cluster.said()));
    assert_eq!(rows.len(), 3);
    let changed: Vec<_> = options(&session)
        .into_iter()
        .filter(|(key, value)| before.get(key) != Some(value) && key != IGNORED)
        .collect();
    assert!(changed.len() > set.len() * 9 / 10, "{} of {} could be set", changed.len(), set.len());
    let log = stage.cluster.worker(0).log();
    let tasks: Vec<_> = log.lines().filter_map(|line| line.split_once(" runs with ")).collect();
    assert!(tasks.len() > 1, "{log}");
    for (task, found) in tasks {
        let found: BTreeSet<_> = found.split("; ").collect();
        let is_there = |key: &str, value: &str| found.contains(format!("{key} = {value}").as_str());
        let lost: Vec<_> = changed
            .iter()
            .filter(|(key, value)| !is_there(key, value) && !is_default(key, value))
            .collect();
        assert!(lost.is_empty(), "{task}: did not see {lost:?} of {}", changed.len());
    }
}

/// Tasks say which of their options are not at their defaults.
fn is_default(key: &str, value: &str) -> bool {
    let (plain, own) = (ConfigOptions::default(), ForebayConfig::default());
    let mut defaults = plain.entries().into_iter().chain(own.entries());
    defaults.any(|entry| entry.key == key && entry.value.as_deref() == Some(value))
}
