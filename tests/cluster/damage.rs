//! Block files that change under the workers' hands.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::setup::{ACCELERATOR, CPU, QUERY, Stage, moments};

/// Damages at each moment all blocks that wait for the model, and those that it has read.
async fn damaged(damage: impl Fn(&Path), found: &str) {
    let stage = Stage::new(10, &[CPU, ACCELERATOR]);
    let session = stage.session().await;
    let undisturbed = stage.undisturbed(&session).await;
    for moment in moments(&[0.4]) {
        let before = stage.cluster.scheduler().log().matches("runs again").count();
        let running = stage.start(&session, QUERY);
        stage.reach(&running, moment, &undisturbed).await;
        // Of the first stage: what the model has written is the result.
        let mut blocks = [stage.cluster.blocks(0), stage.cluster.blocks(1)].concat();
        blocks.retain(|block| block.display().to_string().contains("/0/blocks/"));
        blocks.iter().for_each(|block| damage(block));
        assert!(!blocks.is_empty() && !running.is_over(), "there was nothing to damage");
        let rows = stage.end(running).await;
        let rows = rows.unwrap_or_else(|e| panic!("{moment}: {e}\n{}", stage.cluster.said()));
        assert!(rows == undisturbed.rows, "{moment}: {} rows, or others", rows.len());
        let log = stage.cluster.scheduler().log();
        assert!(log.matches("missing or corrupt").count() > 0, "not noticed\n{log}");
        assert!(log.contains(found), "{found}\n{log}");
        let again = log.matches("runs again").count() - before;
        assert!(again <= blocks.len(), "{again} units ran again for {} blocks", blocks.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_bytes_are_noticed_and_made_again() {
    let change = |block: &Path| {
        // It may have been deleted meanwhile.
        let Ok(file) = OpenOptions::new().read(true).write(true).open(block) else { return };
        let middle = file.metadata().unwrap().len() / 2;
        let mut byte = [0];
        if file.read_exact_at(&mut byte, middle).is_ok() {
            file.write_all_at(&[byte[0] ^ 0x55], middle).unwrap();
        }
    };
    damaged(change, "checksum").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn truncated_files_are_noticed_and_made_again() {
    let cut = |block: &Path| {
        let Ok(file) = OpenOptions::new().write(true).open(block) else { return };
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    };
    damaged(cut, "bytes instead of").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_files_are_noticed_and_made_again() {
    damaged(|block| drop(fs::remove_file(block)), "No such file").await;
}
