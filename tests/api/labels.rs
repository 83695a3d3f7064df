//! ResNet-18 over many image files: the labels are those of PyTorch's own pipeline, and bad files are
//! counted.

use std::collections::HashMap;
use std::fs;

use arrow::array::AsArray;
use arrow::util::pretty::pretty_format_batches;
use datafusion::prelude::SessionConfig;
use forebay::{Catalog, ForebayContext, Inventory};

const FOLDER: &str = ".forebay/fixtures/resnet18";

/// Where the two best classes are as near as this, a pixel that is rounded otherwise may swap them. The
/// weights are random, and tell apart what a trained model would not: JPEGs, which two decoders round
/// differently, often have other labels, so of them only the number is bounded.
const UNDECIDED_MARGIN: f64 = 0.01;

#[derive(serde::Deserialize)]
struct Expected {
    file: String,
    label: String,
    /// By how much the best score exceeds the second.
    margin: f64,
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
    let batches = session().await.sql(&select).await.unwrap().collect().await.unwrap();
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
    let differ: Vec<&Expected> =
        expected.iter().filter(|row| found[&row.file] != row.label).collect();
    let lossless = differ.iter().filter(|row| row.file.ends_with(".png")).count();
    eprintln!("{} of 500 labels differ, {lossless} of them of PNGs", differ.len());
    for row in differ.iter().filter(|row| row.file.ends_with(".png")) {
        let (file, margin) = (&row.file, row.margin);
        assert!(margin < UNDECIDED_MARGIN, "{file}: {} {}, {margin}", found[file], row.label);
    }
    assert!(differ.len() <= 40, "{} labels differ", differ.len());
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
