//! `EXPLAIN` on a cluster: into which stages a plan is cut, and how they read each other.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory, RunningScheduler, Scheduler};

/// A scheduler without workers, and a session on it that plans for some.
async fn cluster() -> (RunningScheduler, ForebayContext) {
    let scheduler = Scheduler::new(Arc::new(RuntimeEnv::default())).start().await.unwrap();
    let session = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .connect(&scheduler.address().to_string())
        .await
        .unwrap();
    for sql in [
        "CREATE MODEL echo LOCATION 'tests/models/echo'",
        "CREATE MODEL sentiment LOCATION 'tests/models/sentiment'",
    ] {
        session.sql(sql).await.unwrap().collect().await.unwrap();
    }
    let numbers = || Arc::new(Int64Array::from(vec![1, 5])) as ArrayRef;
    let texts = || Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
    let t = [("id", numbers()), ("stars", numbers()), ("text", texts())];
    let names = [("stars", numbers()), ("name", texts())];
    for (name, rows) in [
        ("t", RecordBatch::try_from_iter(t).unwrap()),
        ("names", RecordBatch::try_from_iter(names).unwrap()),
    ] {
        session.session().register_batch(name, rows).unwrap();
    }
    (scheduler, session)
}

/// The rows of a kind that an `EXPLAIN` gives.
async fn explained(session: &ForebayContext, sql: &str, kind: &str) -> String {
    let mut found = String::new();
    for rows in session.sql(sql).await.unwrap().collect().await.unwrap() {
        let (kinds, texts) = (rows.column(0).as_string::<i32>(), rows.column(1).as_string::<i32>());
        for (row, text) in kinds.iter().zip(texts).filter(|(row, _)| *row == Some(kind)) {
            assert_eq!(row, Some(kind));
            found += text.unwrap();
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_the_stages_and_how_they_read_each_other() {
    let (_scheduler, session) = cluster().await;
    let stages = async |sql: &str| explained(&session, &format!("EXPLAIN {sql}"), "stages").await;

    let scan = "SELECT * FROM ml_predict(TABLE t, MODEL echo, DESCRIPTOR(id))";
    insta::assert_snapshot!(stages(scan).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    client: reads 1 task by task
    ");

    // What a model gives is not replayable: batches may differ in their last bits.
    let chain =
        format!("SELECT * FROM ml_predict(TABLE ({scan}), MODEL sentiment, DESCRIPTOR(text))");
    insta::assert_snapshot!(stages(&chain).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Transform < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: BlockWriter < Inference(sentiment) < StreamingExchange < BlockReader; 0.5 emulated; reads 1 task by task
    client: reads 2 task by task
    ");

    let aggregate = "SELECT label, count(*) FROM ml_predict(TABLE t, MODEL sentiment, \
         DESCRIPTOR(text)) GROUP BY label ORDER BY label";
    insta::assert_snapshot!(stages(aggregate).await, @r"
    stage 0: BlockWriter < Projection < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(sentiment) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: HashWriter < Aggregate < BlockReader; 1 cpu; reads 1 task by task
    stage 3: BlockWriter < Projection < Sort < Aggregate < ShuffleReader; 1 cpu; 2 partitions; reads 2 by hash when it is done
    stage 4: BlockWriter < SortPreservingMerge < BlockReader; 1 cpu; reads 3 in ranges when it is done
    client: reads 4 task by task
    ");

    let union = "SELECT digest FROM ml_predict(TABLE t, MODEL echo, DESCRIPTOR(id)) UNION ALL \
         SELECT stars FROM t";
    insta::assert_snapshot!(stages(union).await, @r"
    stage 0: BlockWriter < Projection < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: BlockWriter < Union < BlockReader < Projection < DataSource; 1 cpu; 1 partition; reads 1 task by task
    client: reads 2 task by task
    ");

    let join = format!("{scan} JOIN names USING (stars)");
    insta::assert_snapshot!(stages(&join).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: BlockWriter < HashJoin < BlockReader < DataSource; 1 cpu; 1 partition; reads 1 broadcast when it is done
    client: reads 2 task by task
    ");

    let volatile = "SELECT * FROM ml_predict((SELECT * FROM t WHERE random() < 0.5), MODEL echo, \
         DESCRIPTOR(id))";
    insta::assert_snapshot!(stages(volatile).await, @r"
    stage 0: BlockWriter < Transform < Filter < DataSource; 1 cpu; 1 partition
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 task by task
    client: reads 1 task by task
    ");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_shows_what_merges_many_small_segments() {
    let (_scheduler, session) = cluster().await;
    let options = ["datafusion.execution.target_partitions = 8", "forebay.merge_segments_from = 1"];
    for option in options {
        session.sql(&format!("SET {option}")).await.unwrap().collect().await.unwrap();
    }
    let groups = "EXPLAIN SELECT stars, count(*) FROM t GROUP BY stars";
    insta::assert_snapshot!(explained(&session, groups, "stages").await, @r"
    stage 0: HashWriter < Aggregate < DataSource; 1 cpu; 1 partition
    stage 1: HashWriter < ShuffleReader; 1 cpu; 2 partitions; reads 0 by hash when it is done
    stage 2: BlockWriter < Projection < Aggregate < ShuffleReader; 1 cpu; 8 partitions; reads 1 by hash, merged, when it is done
    client: reads 2 task by task
    ");
    let never = "SET forebay.merge_segments_below = 0";
    session.sql(never).await.unwrap().collect().await.unwrap();
    let stages = explained(&session, groups, "stages").await;
    assert!(stages.contains("reads 0 by hash when it is done\nclient: reads 1"), "{stages}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_nothing_of_stages_where_there_are_none() {
    let (_scheduler, session) = cluster().await;
    for sql in [
        "EXPLAIN SELECT count(*) FROM forebay.jobs",
        "EXPLAIN SELECT 1",
        // Programs get the one document that they expect.
        "EXPLAIN FORMAT PGJSON SELECT stars FROM t",
    ] {
        assert_eq!(explained(&session, sql, "stages").await, "", "{sql}");
    }
    let tree = explained(&session, "EXPLAIN FORMAT TREE SELECT stars FROM t", "stages").await;
    let scan = "stage 0: BlockWriter < DataSource; 1 cpu; 1 partition; replayable";
    assert_eq!(tree, format!("{scan}\nclient: reads 0 block by block"));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_by_tasks_that_read_what_makes_a_file() {
    let (_scheduler, session) = cluster().await;
    let home = tempfile::tempdir().unwrap();
    let at = home.path().display();
    let stages = async |sql: &str| explained(&session, &format!("EXPLAIN {sql}"), "stages").await;

    let scan = "SELECT * FROM ml_predict(TABLE t, MODEL echo, DESCRIPTOR(id))";
    let folder = format!("COPY ({scan}) TO '{at}/out/' STORED AS PARQUET");
    insta::assert_snapshot!(stages(&folder).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: BlockWriter < Write < BlockReader; 1 cpu; reads 1 in groups of tasks
    client: reads 2 task by task
    ");

    // In an order, a task writes a range of it.
    let sorted = format!("COPY ({scan} ORDER BY id) TO '{at}/out/' STORED AS PARQUET");
    insta::assert_snapshot!(stages(&sorted).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    stage 2: BlockWriter < Sort < BlockReader; 1 cpu; reads 1 task by task
    stage 3: BlockWriter < Write < SortPreservingMerge < BlockReader; 1 cpu; reads 2 in ranges when it is done
    client: reads 3 task by task
    ");

    // One file is the session's.
    let file = format!("COPY ({scan}) TO '{at}/out.parquet'");
    insta::assert_snapshot!(stages(&file).await, @r"
    stage 0: BlockWriter < Transform < DataSource; 1 cpu; 1 partition; replayable
    stage 1: BlockWriter < Inference(echo) < StreamingExchange < BlockReader; 0.5 emulated; reads 0 block by block
    client: reads 1 task by task
    ");
    assert!(!home.path().join("out").exists());
}
