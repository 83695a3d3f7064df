//! Packages with native code: who may run it, which program a device takes, and what is said.

use std::fs;

use arrow::array::AsArray;
use arrow::datatypes::Float32Type;
use forebay::prelude::*;
use forebay::{Catalog, Inventory};

const PACKAGE: &str = ".forebay/fixtures/compiled/package";
const QUERY: &str = "SELECT embedding FROM ml_predict((SELECT * FROM (VALUES ('one'), ('two texts'), \
                     ('and a third')) AS t(text)), MODEL m, DESCRIPTOR(text))";

async fn session(inventory: Inventory) -> ForebayContext {
    let builder = ForebayContext::builder().with_catalog(Catalog::in_memory());
    builder.with_inventory(inventory).build().unwrap()
}

fn here() -> Inventory {
    Inventory::detect().with_cpus(2).with_cuda(vec![])
}

async fn run(forebay: &ForebayContext, sql: &str) -> Result<Vec<f32>, String> {
    let frame = forebay.sql(sql).await.map_err(|error| error.to_string())?;
    let batches = frame.collect().await.map_err(|error| error.to_string())?;
    let column = |batch: &arrow::array::RecordBatch| {
        let vectors = batch.column(0).as_fixed_size_list();
        vectors.values().as_primitive::<Float32Type>().values().to_vec()
    };
    Ok(batches.iter().filter(|batch| batch.num_columns() > 0).flat_map(column).collect())
}

/// The rows of DESCRIBE MODEL that name programs.
async fn programs(forebay: &ForebayContext) -> Vec<[String; 2]> {
    let batches = forebay.sql("DESCRIBE MODEL m").await.unwrap().collect().await.unwrap();
    let mut found = vec![];
    for batch in batches {
        let text = |at: usize, row| batch.column(at).as_string::<i32>().value(row).to_owned();
        let rows = (0..batch.num_rows()).filter(|row| text(0, *row) == "program");
        found.extend(rows.map(|row| [text(1, row), text(2, row)]));
    }
    found
}

fn assert_near(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let far = found.iter().zip(expected).find(|(a, b)| (**a - **b).abs() > 1e-5);
    assert_eq!(far, None);
}

#[tokio::test]
async fn a_statement_allows_native_code_or_takes_torchscript() {
    let forebay = session(here()).await;
    run(&forebay, &format!("CREATE MODEL m LOCATION '{PACKAGE}'")).await.unwrap();
    let error = run(&forebay, QUERY).await.unwrap_err();
    assert!(error.contains("is native code") && error.contains("ALTER MODEL m SET"), "{error}");
    let [code, on]: [_; 2] = programs(&forebay).await.try_into().unwrap();
    assert!(code[1].starts_with("native code for cpu"), "{code:?}");
    assert_eq!(on[0], "on cpu");
    assert_eq!(on[1], format!("{} (native code), once allow_native is true or false", code[0]));

    // Whoever may query does not decide that.
    for call in [
        QUERY.replace("DESCRIPTOR(text)", "DESCRIPTOR(text), allow_native => true"),
        "SELECT ml_predict(MODEL m, 'one', MAP {'allow_native': 'true'})".to_owned(),
    ] {
        let error = run(&forebay, &call).await.unwrap_err();
        assert!(error.contains("a call does not allow native code"), "{call}: {error}");
    }

    run(&forebay, "ALTER MODEL m SET ('allow_native' = 'false')").await.unwrap();
    let script = run(&forebay, QUERY).await.unwrap();
    let on = programs(&forebay).await.pop().unwrap();
    assert_eq!(on[1], "model.pt (TorchScript), because allow_native is false");

    run(&forebay, "ALTER MODEL m SET ('allow_native' = 'true')").await.unwrap();
    assert_near(&run(&forebay, QUERY).await.unwrap(), &script);
    let on = programs(&forebay).await.pop().unwrap();
    assert_eq!(on[1], format!("{} (native code)", code[0]));

    // Both stay loaded, and each query has its own.
    let of_call = QUERY.replace("DESCRIPTOR(text)", "DESCRIPTOR(text), allow_native => false");
    assert_near(&run(&forebay, &of_call).await.unwrap(), &script);
    let perhaps = run(&forebay, "ALTER MODEL m SET ('allow_native' = 'perhaps')").await;
    let error = perhaps.unwrap_err();
    assert!(
        error.contains("invalid value 'perhaps' for 'allow_native': expected true or"),
        "{error}"
    );
}

#[tokio::test]
async fn a_process_allows_native_code_to_models_that_do_not_say() {
    let forebay = session(here().with_native_code(true)).await;
    run(&forebay, &format!("CREATE MODEL m LOCATION '{PACKAGE}'")).await.unwrap();
    let native = run(&forebay, QUERY).await.unwrap();
    assert!(programs(&forebay).await.pop().unwrap()[1].ends_with(" (native code)"));
    run(&forebay, "ALTER MODEL m SET ('allow_native' = 'false')").await.unwrap();
    assert_near(&run(&forebay, QUERY).await.unwrap(), &native);
    let on = programs(&forebay).await.pop().unwrap();
    assert_eq!(on[1], "model.pt (TorchScript), because allow_native is false");
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_say_whether_native_code_may_run() {
    for allows in [false, true] {
        let builder = ForebayContext::builder().with_catalog(Catalog::in_memory());
        let builder = builder.with_inventory(here().with_native_code(allows));
        let forebay = Box::pin(builder.standalone()).await.unwrap();
        run(&forebay, &format!("CREATE MODEL m LOCATION '{PACKAGE}'")).await.unwrap();
        // Which program they take is theirs to say.
        assert_eq!(programs(&forebay).await.len(), 1);
        match run(&forebay, QUERY).await {
            Ok(found) => assert!(allows && !found.is_empty()),
            Err(error) => assert!(!allows && error.contains("--allow-native"), "{error}"),
        }
        run(&forebay, "ALTER MODEL m SET ('allow_native' = 'true')").await.unwrap();
        run(&forebay, QUERY).await.unwrap();
    }
}

#[tokio::test]
async fn code_for_other_machines_is_left_without_a_question() {
    let folder = tempfile::tempdir().unwrap();
    for file in fs::read_dir(PACKAGE).unwrap().flatten() {
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("model.toml");
    let text = fs::read_to_string(&path).unwrap();
    let torch = text.lines().find(|line| line.starts_with("torch = ")).unwrap();
    fs::write(&path, text.replace(torch, "torch = \"1.13.1\"")).unwrap();
    let forebay = session(here()).await;
    run(&forebay, &format!("CREATE MODEL m LOCATION '{}'", folder.path().display())).await.unwrap();
    assert!(!run(&forebay, QUERY).await.unwrap().is_empty());
    let [code, on]: [_; 2] = programs(&forebay).await.try_into().unwrap();
    let reason = format!("because {} is of torch 1.13.1, here is 2.11.0", code[0]);
    assert_eq!(on[1], format!("model.pt (TorchScript), {reason}"));
}
