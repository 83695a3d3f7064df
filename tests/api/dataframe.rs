//! `df.ml_predict` gives the same plan as SQL.

use datafusion::physical_plan::displayable;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};

async fn session() -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap();
    forebay.register_model("echo", "tests/models/echo").await.unwrap();
    forebay.sql("CREATE TABLE t (id BIGINT, n BIGINT) AS VALUES (1, 2), (3, 4)").await.unwrap();
    forebay
}

#[tokio::test]
async fn the_same_plan_as_from_sql() {
    let forebay = session().await;
    let options = [("max_batch_rows", "2"), ("gpus", "0.25")];
    let frame = forebay.session().table("t").await.unwrap();
    let frame = frame.ml_predict("echo", &["n"], &options).unwrap();
    let sql = "SELECT * FROM ml_predict(TABLE t, MODEL echo, DESCRIPTOR(n),
               MAP {'max_batch_rows': '2', 'gpus': '0.25'})";
    let queried = forebay.sql(sql).await.unwrap();

    let logical = |frame: &DataFrame| {
        frame.clone().into_optimized_plan().unwrap().display_indent().to_string()
    };
    assert_eq!(logical(&frame), logical(&queried));
    let (from_frame, from_sql) = (
        frame.create_physical_plan().await.unwrap(),
        queried.create_physical_plan().await.unwrap(),
    );
    assert_eq!(
        displayable(from_frame.as_ref()).indent(true).to_string(),
        displayable(from_sql.as_ref()).indent(true).to_string()
    );
}

#[tokio::test]
async fn columns_may_be_left_out_and_qualified() {
    let forebay = session().await;
    let table = || async { forebay.session().table("t").await.unwrap() };
    let named = table().await.ml_predict("echo", &[], &[]).unwrap();
    let qualified = table().await.ml_predict("echo", &["t.n"], &[]).unwrap();
    let sum = |frame: DataFrame| async {
        let rows = frame.sort_by(vec![col("id")]).unwrap().collect().await.unwrap();
        arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string()
    };
    assert_eq!(sum(named).await, sum(qualified).await);
}

#[tokio::test]
async fn mistakes_are_named() {
    let forebay = session().await;
    let table = forebay.session().table("t").await.unwrap();
    for (model, columns, options, expected) in [
        ("ecco", vec!["n"], vec![], "did you mean 'echo'?"),
        ("echo", vec!["m"], vec![], "No field named m"),
        ("echo", vec!["n", "id"], vec![], "takes 1 input column(s), found 2"),
        ("echo", vec!["n"], vec![("gpu", "1")], "did you mean 'gpus'?"),
    ] {
        let error = table.clone().ml_predict(model, &columns, &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_session_without_forebay_says_so() {
    let plain = SessionContext::new();
    let frame = plain.read_empty().unwrap();
    let error = frame.ml_predict("echo", &[], &[]).unwrap_err().to_string();
    assert!(error.contains("not installed"), "{error}");
}
