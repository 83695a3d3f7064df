//! Texts that are longer than a model takes are counted where they are cut.

use arrow::util::pretty::pretty_format_batches;
use forebay::{Catalog, ForebayContext, Inventory};

/// What EXPLAIN ANALYZE says of `truncated`, over all operators that say anything; `None` if none does.
async fn truncated(options: &str) -> Option<usize> {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .build()
        .unwrap();
    for (model, folder) in
        [("bert", ".forebay/fixtures/bert/package"), ("echo", "tests/models/echo")]
    {
        let create = format!("CREATE MODEL {model} LOCATION '{folder}'");
        forebay.sql(&create).await.unwrap().collect().await.unwrap();
    }
    // The model takes 48 tokens.
    let analyze = format!(
        "EXPLAIN ANALYZE SELECT * FROM ml_predict((SELECT n, text FROM (VALUES
           (1, 'a dog'), (2, repeat('the dog ', 30)), (3, NULL), (4, ''), (5, repeat('fox ', 2000)),
           (6, repeat('a ', 46)), (7, repeat('a ', 47))) AS t(n, text)), {options})"
    );
    let batches = forebay.sql(&analyze).await.unwrap().collect().await.unwrap();
    let text = pretty_format_batches(&batches).unwrap().to_string();
    let counts = text.split("truncated=").skip(1).map(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|digits| digits.parse::<usize>().ok()).unwrap()
    });
    counts.reduce(|one, other| one + other)
}

#[tokio::test]
async fn texts_that_are_cut_are_counted_by_explain_analyze() {
    // 46 words and two special tokens are not cut, 47 are.
    assert_eq!(truncated("MODEL bert, DESCRIPTOR(text)").await, Some(3));
    let counted = truncated("MODEL bert, DESCRIPTOR(text), on_error => 'null'").await;
    assert_eq!(counted, Some(3));
    // Numbers are never cut.
    assert_eq!(truncated("MODEL echo, DESCRIPTOR(n)").await, None);
}
