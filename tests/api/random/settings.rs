//! Options under which the same query must give the same rows.

use super::features::Feature;

/// An option and its values, the default one first.
type Setting = (&'static str, &'static [&'static str]);

/// An option and another value.
pub(super) type Choice = (&'static str, &'static str);

/// For every session.
pub(super) const SETTINGS: &[Setting] = &[
    ("forebay.exchange", &["true", "false"]),
    ("forebay.ordered_exchanges", &["true", "false"]),
    ("forebay.share_equal_inputs", &["true", "false"]),
    ("forebay.push_filters_below_inference", &["true", "false"]),
    ("forebay.push_limits_below_inference", &["true", "false"]),
    ("forebay.push_topk_below_inference", &["true", "false"]),
    ("forebay.push_semi_joins_below_inference", &["true", "false"]),
    ("forebay.merge_equal_inferences", &["true", "false"]),
    ("forebay.prune_unused_columns", &["true", "false"]),
    ("forebay.order_filters_by_cost", &["true", "false"]),
    ("datafusion.execution.target_partitions", &["3", "1", "2", "4"]),
    ("datafusion.execution.batch_size", &["8192", "2", "5"]),
    ("datafusion.optimizer.prefer_hash_join", &["true", "false"]),
    ("datafusion.optimizer.hash_join_single_partition_threshold", &["1048576", "0"]),
    ("datafusion.optimizer.hash_join_single_partition_threshold_rows", &["131072", "0"]),
    ("datafusion.optimizer.repartition_file_min_size", &["1048576", "1"]),
    ("datafusion.optimizer.repartition_joins", &["true", "false"]),
    ("datafusion.optimizer.repartition_aggregations", &["true", "false"]),
    ("datafusion.optimizer.repartition_windows", &["true", "false"]),
    ("datafusion.optimizer.repartition_sorts", &["true", "false"]),
    ("datafusion.optimizer.prefer_existing_sort", &["false", "true"]),
    ("datafusion.optimizer.prefer_existing_union", &["false", "true"]),
    ("datafusion.optimizer.enable_dynamic_filter_pushdown", &["true", "false"]),
    ("datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery", &["true", "false"]),
    ("datafusion.execution.parquet.pushdown_filters", &["false", "true"]),
];

/// For those of a cluster beside these.
pub(super) const OF_CLUSTERS: &[Setting] = &[
    // Of a few rows each.
    ("forebay.block_bytes", &["134217728", "100", "1", "300"]),
    ("forebay.stream_stages", &["true", "false"]),
    ("forebay.dynamic_blocks", &["true", "false"]),
    ("forebay.edge_budget", &["1073741824", "200"]),
    ("forebay.job_budget", &["17179869184", "1000"]),
    ("forebay.admission", &["reserve", "paper", "off"]),
];

/// What these numbers stand for. Most options stay as they are.
pub(super) fn chosen(of: &[Setting], numbers: &[u16]) -> Vec<Choice> {
    let of = of.iter().zip(numbers).filter_map(|((name, values), number)| {
        let others = &values[1..];
        // The upper quarter of the numbers.
        let other =
            (usize::from(*number) * 4 * others.len() >> 16).checked_sub(3 * others.len())?;
        Some((*name, others[other]))
    });
    of.collect()
}

/// Whether the query may run under this option.
pub(super) fn is_on((name, _): Choice, query: &str) -> bool {
    let sort_merge = name.ends_with("prefer_hash_join") && query.contains("sorted AS");
    !sort_merge || Feature::SortMergeOfSorted.is_on()
}
