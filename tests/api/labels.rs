//! ResNet-18 over many image files: the labels are those of PyTorch's own pipeline, and bad files are
//! counted.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory};

const FOLDER: &str = ".forebay/fixtures/resnet18";

/// Bytes of an image of 224x224 as the exchange carries it: not floats, which would be four times as many.
const PIXEL_BYTES: usize = 224 * 224 * 3;

#[derive(serde::Deserialize)]
struct Expected {
    file: String,
    label: String,
}

async fn session() -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap();
    let create = format!("CREATE MODEL resnet18 LOCATION '{FOLDER}/package'");
    forebay.sql(&create).await.unwrap().collect().await.unwrap();
    forebay
}

#[tokio::test]
async fn labels_of_500_images_are_those_of_pytorch() {
    let text = fs::read_to_string(format!("{FOLDER}/labels.json")).unwrap();
    let expected: Vec<Expected> = serde_json::from_str(&text).unwrap();
    let select = format!(
        "SELECT split_part(url, '/', -1) AS file, label FROM ml_predict(
           (SELECT url, bytes FROM read_files('{FOLDER}/images/*')), MODEL resnet18, DESCRIPTOR(bytes))"
    );
    let forebay = session().await;
    let plan = forebay.sql(&select).await.unwrap().create_physical_plan().await.unwrap();
    let batches = collect(Arc::clone(&plan), forebay.session().task_ctx()).await.unwrap();
    let moved = moved_bytes(plan.as_ref()) / 500;
    let with_names = PIXEL_BYTES..PIXEL_BYTES + 200;
    assert!(with_names.contains(&moved), "{moved} bytes per image through the exchange");
    let mut found = HashMap::new();
    for batch in &batches {
        let columns = [batch.column(0), batch.column(1)]
            .map(|column| arrow::compute::cast(column, &arrow::datatypes::DataType::Utf8).unwrap());
        let [files, labels] = columns.each_ref().map(|column| column.as_string::<i32>());
        for row in 0..batch.num_rows() {
            found.insert(files.value(row).to_owned(), labels.value(row).to_owned());
        }
    }
    assert_eq!((expected.len(), found.len()), (500, 500));
    for row in &expected {
        assert_eq!(found[&row.file], row.label, "{}", row.file);
    }
    let kinds: HashSet<_> = found.values().collect();
    assert_eq!(kinds.len(), 10, "all classes occur");
}

/// What all exchanges moved.
fn moved_bytes(plan: &dyn ExecutionPlan) -> usize {
    let below: usize = plan.children().iter().map(|child| moved_bytes(child.as_ref())).sum();
    let own = plan.metrics().and_then(|metrics| metrics.sum_by_name("moved_bytes"));
    below + own.map_or(0, |bytes| bytes.as_usize())
}

#[tokio::test]
async fn files_that_are_no_images_are_counted() {
    let forebay = session().await;
    let analyze = "EXPLAIN ANALYZE SELECT label FROM ml_predict(
        (SELECT bytes FROM read_files('.forebay/images/bad/*')),
        MODEL resnet18, DESCRIPTOR(bytes), on_error => 'null')";
    let batches = forebay.sql(analyze).await.unwrap().collect().await.unwrap();
    let text = pretty_format_batches(&batches).unwrap().to_string();
    let failed: usize = text
        .split("rows_failed=")
        .skip(1)
        .filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<usize>().ok())
        .sum();
    let bad = fs::read_dir(".forebay/images/bad").unwrap().count();
    assert_eq!(failed, bad, "{text}");
}

#[tokio::test]
async fn what_a_cpu_computes_is_stated() {
    let forebay = session().await;
    for package in ["bert/package", "onnx/package-bert/model"] {
        let location = format!(".forebay/fixtures/{package}");
        let name = package.split('/').next().unwrap().replace("onnx", "o");
        forebay.register_model(&name, &location).await.unwrap();
        let analyze = format!(
            "EXPLAIN ANALYZE SELECT embedding FROM ml_predict((SELECT 'a dam' AS text), MODEL {name},
             device => 'cpu')"
        );
        let batches = forebay.sql(&analyze).await.unwrap().collect().await.unwrap();
        let text = pretty_format_batches(&batches).unwrap().to_string();
        assert!(text.contains("operations=") && text.contains(" GFLOP/s"), "{text}");
    }
}
