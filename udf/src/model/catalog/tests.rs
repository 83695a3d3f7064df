use std::fs;

use super::files::{LOCK, entry_files};
use super::*;
use crate::fixture::{Folder, tensors};
use crate::model::{Observed, Precision, Share};

const EMULATED: &str = "kind = \"emulated\"\nservice_ms = 1";

fn entry(name: &str) -> CatalogEntry {
    let folder = Folder::new(&tensors(&[("a", "FLOAT[2]")], &[("b", "FLOAT")], EMULATED), &[]);
    let (mut declaration, _) = crate::fixture::open(folder.path());
    declaration.name = name.to_owned();
    CatalogEntry {
        comment: Some("it's \"quoted\"\nand long".to_owned()),
        license: None,
        source: None,
        temporary: false,
        options: BTreeMap::new(),
        declaration,
    }
}

fn names(catalog: &Catalog) -> Vec<String> {
    catalog.list().unwrap().iter().map(|entry| entry.name().to_owned()).collect()
}

#[test]
fn two_handles_of_a_folder_see_each_others_models() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("not/there/yet");
    let (one, other) = (Catalog::open(&path).unwrap(), Catalog::open(&path).unwrap());
    assert!(names(&one).is_empty() && !path.exists());
    let created = entry("minilm").with_options(&[("max_replicas", "2")]).unwrap();
    assert!(one.create(created.clone(), IfExists::Fail).unwrap());
    assert_eq!(other.get("minilm").unwrap(), created);
    assert!(other.remove("minilm").unwrap());
    assert!(!one.remove("minilm").unwrap());
    assert!(matches!(one.get("minilm"), Err(ModelError::UnknownModel { .. })));
}

#[test]
fn a_taken_name_is_kept_replaced_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    for catalog in [Catalog::open(dir.path()).unwrap(), Catalog::in_memory()] {
        let first = entry("m");
        assert!(catalog.create(first.clone(), IfExists::Keep).unwrap());
        let other = entry("m").with_options(&[("precision", "bf16")]).unwrap();
        assert!(!catalog.create(other.clone(), IfExists::Keep).unwrap());
        let error = catalog.create(other.clone(), IfExists::Fail).unwrap_err();
        assert!(matches!(error, ModelError::ModelExists { .. }), "{error}");
        assert_eq!(catalog.get("m").unwrap(), first);
        assert!(catalog.create(other.clone(), IfExists::Replace).unwrap());
        assert_eq!(catalog.get("m").unwrap(), other);
    }
    let mut files: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    files.sort_unstable();
    assert_eq!(files, [LOCK, "m.toml"], "no unfinished files are left");
}

#[test]
fn of_many_creators_one_wins_and_readers_see_whole_entries() {
    let dir = tempfile::tempdir().unwrap();
    let created = std::thread::scope(|scope| {
        let work = |i: usize| {
            let catalog = Catalog::open(dir.path()).unwrap();
            let created = catalog.create(entry("m"), IfExists::Keep).unwrap();
            for _ in 0..50 {
                let value = i.to_string();
                let changed = entry("m").with_options(&[("output_prefix", &value)]).unwrap();
                catalog.create(changed, IfExists::Replace).unwrap();
                catalog.get("m").unwrap();
            }
            created
        };
        let threads: Vec<_> = (0..4).map(|i| scope.spawn(move || work(i))).collect();
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum::<usize>()
    });
    assert_eq!(created, 1);
    assert!(Catalog::open(dir.path()).unwrap().damaged().unwrap().is_empty());
}

#[test]
fn temporary_models_hide_stored_ones() {
    let catalog = Catalog::in_memory();
    catalog.create(entry("m"), IfExists::Fail).unwrap();
    catalog.create(entry("a"), IfExists::Fail).unwrap();
    let temporary = CatalogEntry { temporary: true, ..entry("m") };
    assert!(catalog.create(temporary.clone(), IfExists::Fail).unwrap());
    assert!(catalog.create(temporary, IfExists::Fail).is_err());
    assert!(catalog.get("m").unwrap().temporary);
    assert_eq!(names(&catalog), ["a", "m"]);
    assert!(catalog.remove("m").unwrap());
    assert!(!catalog.get("m").unwrap().temporary);
}

#[test]
fn altering_adds_options_and_applies_them() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    catalog.create(entry("m").with_options(&[("gpus", "0.5")]).unwrap(), IfExists::Fail).unwrap();
    catalog.alter("m", &[("PRECISION", "bf16"), ("max_batch_rows", "7")]).unwrap();
    let altered = catalog.get("m").unwrap();
    assert_eq!(altered.declaration.precision, Precision::Bf16);
    assert_eq!(altered.declaration.batch.max_rows, 7);
    assert_eq!(altered.declaration.resources.gpus, "0.5".parse::<Share>().unwrap());
    assert_eq!(altered.options.keys().collect::<Vec<_>>(), ["gpus", "max_batch_rows", "precision"]);
    let error = catalog.alter("m", &[("presicion", "bf16")]).unwrap_err();
    assert!(error.to_string().contains("did you mean 'precision'?"), "{error}");
    assert_eq!(catalog.get("m").unwrap(), altered);
}

/// Each sets an option of its own, in sessions of one process and in processes (which see nothing
/// of each other but the folder).
#[test]
fn of_changes_at_the_same_time_none_is_lost() {
    const OPTIONS: [(&str, &str); 4] =
        [("gpus", "0.5"), ("precision", "bf16"), ("max_batch_rows", "7"), ("on_error", "route")];
    let dir = tempfile::tempdir().unwrap();
    let stored = Catalog::open(dir.path()).unwrap();
    let memory = Catalog::in_memory();
    let of_a_process = |_: usize| Catalog::open(dir.path()).unwrap();
    let of_a_session = |_: usize| stored.for_session();
    let in_memory = |_: usize| memory.for_session();
    let places: [&(dyn Fn(usize) -> Arc<Catalog> + Sync); 3] =
        [&of_a_process, &of_a_session, &in_memory];
    for catalog in places {
        for round in 0..20 {
            catalog(0).create(entry("m"), IfExists::Replace).unwrap();
            std::thread::scope(|scope| {
                for (at, option) in OPTIONS.iter().enumerate() {
                    scope.spawn(move || catalog(at).alter("m", &[*option]).unwrap());
                }
            });
            let options = catalog(0).get("m").unwrap().options;
            let set: Vec<_> = options.iter().map(|(key, value)| (&**key, &**value)).collect();
            let mut all = OPTIONS.to_vec();
            all.sort_unstable();
            assert_eq!(set, all, "round {round}");
        }
    }
}

#[test]
fn what_running_a_model_has_taught_outlives_a_change_and_not_another_model() {
    let dir = tempfile::tempdir().unwrap();
    for catalog in [Catalog::open(dir.path()).unwrap(), Catalog::in_memory()] {
        let stored = entry("m");
        let temporary = CatalogEntry { temporary: true, ..entry("t") };
        let model = stored.declaration.clone();
        for entry in [stored.clone(), temporary] {
            catalog.create(entry, IfExists::Fail).unwrap();
        }
        let too_large = Observed { rows: 64, padded: 64, busy: None, memory: None };
        catalog.learned().observe(&model, "cuda", None, &too_large);
        let known = || catalog.learned().get(&model, "cuda").padded_max;
        for name in ["m", "t"] {
            catalog.alter(name, &[("max_batch_rows", "7")]).unwrap();
            assert_eq!(known(), Some(32), "{name}");
        }
        catalog.create(stored, IfExists::Replace).unwrap();
        assert_eq!(known(), None);
    }
}

#[test]
fn a_change_of_a_model_that_is_not_there_makes_no_folder() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path().join("models")).unwrap();
    assert!(catalog.alter("m", &[("gpus", "1")]).is_err());
    assert!(catalog.rename("m", "n").is_err());
    assert!(!catalog.remove("m").unwrap());
    assert!(!dir.path().join("models").exists());
}

#[test]
fn a_damaged_entry_concerns_its_model_only() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    catalog.create(entry("good"), IfExists::Fail).unwrap();
    fs::write(dir.path().join("bad.toml"), "comment = ").unwrap();
    assert_eq!(names(&catalog), ["good"]);
    let message = catalog.get("bad").unwrap_err().to_string();
    assert!(message.contains("bad.toml: damaged (") && !message.contains('\n'), "{message}");
    assert_eq!(catalog.damaged().unwrap().len(), 1);
    assert!(catalog.create(entry("bad"), IfExists::Replace).unwrap());
    assert_eq!(names(&catalog), ["bad", "good"]);
}

#[test]
fn names_differ_in_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(dir.path()).unwrap();
    let long = "x".repeat(300);
    let longer = "x".repeat(301);
    let all = ["m", "M", "../m", "a/b", "a%2fb", ".m", "", "größe", "con.toml", &long, &longer];
    for name in all {
        assert!(catalog.create(entry(name), IfExists::Fail).unwrap(), "{name}");
    }
    for name in all {
        assert_eq!(catalog.get(name).unwrap().name(), name);
    }
    assert_eq!(names(&catalog).len(), all.len());
    assert_eq!(entry_files(dir.path()).unwrap().len(), all.len());
}

#[test]
fn a_misspelt_name_gets_the_nearest_one() {
    let catalog = Catalog::in_memory();
    catalog.create(entry("minilm"), IfExists::Fail).unwrap();
    let message = catalog.get("minlm").unwrap_err().to_string();
    assert!(message.contains("did you mean 'minilm'?"), "{message}");
}

#[test]
fn a_file_is_no_catalog() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(Catalog::open(file.path()).unwrap_err().to_string().contains("not a folder"));
}
