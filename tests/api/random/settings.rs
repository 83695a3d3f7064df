//! Options under which the same query must give the same rows.

/// An option and another value than it has by itself.
pub(in crate::api) type Choice = (&'static str, &'static str);

/// For every session.
pub(in crate::api) const SETTINGS: &[Choice] = &[
    ("forebay.exchange", "false"),
    ("forebay.ordered_exchanges", "false"),
    ("forebay.share_equal_inputs", "false"),
    ("forebay.push_filters_below_inference", "false"),
    ("forebay.push_limits_below_inference", "false"),
    ("forebay.push_topk_below_inference", "false"),
    ("forebay.push_semi_joins_below_inference", "false"),
    ("forebay.merge_equal_inferences", "false"),
    ("forebay.prune_unused_columns", "false"),
    ("forebay.order_filters_by_cost", "false"),
    ("datafusion.execution.target_partitions", "1"),
    ("datafusion.execution.target_partitions", "2"),
    ("datafusion.execution.target_partitions", "4"),
    ("datafusion.execution.batch_size", "2"),
    ("datafusion.execution.batch_size", "5"),
    ("datafusion.optimizer.prefer_hash_join", "false"),
    ("datafusion.optimizer.hash_join_single_partition_threshold", "0"),
    ("datafusion.optimizer.hash_join_single_partition_threshold_rows", "0"),
    ("datafusion.optimizer.repartition_file_min_size", "1"),
    ("datafusion.optimizer.repartition_joins", "false"),
    ("datafusion.optimizer.repartition_aggregations", "false"),
    ("datafusion.optimizer.repartition_windows", "false"),
    ("datafusion.optimizer.repartition_sorts", "false"),
    ("datafusion.optimizer.prefer_existing_sort", "true"),
    ("datafusion.optimizer.prefer_existing_union", "true"),
    ("datafusion.optimizer.enable_dynamic_filter_pushdown", "false"),
    ("datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery", "false"),
    ("datafusion.execution.parquet.pushdown_filters", "true"),
];

/// For those of a cluster beside these.
pub(in crate::api) const OF_CLUSTERS: &[Choice] = &[
    // Of a few rows each.
    ("forebay.block_bytes", "100"),
    ("forebay.block_bytes", "1"),
    ("forebay.block_bytes", "300"),
    ("forebay.range_bytes", "1"),
    ("forebay.range_bytes", "300"),
    ("forebay.partition_bytes", "1000"),
    // However few there are.
    ("forebay.merge_segments_from", "1"),
    ("forebay.merge_segments_below", "1000000000"),
    ("forebay.stream_stages", "false"),
    ("forebay.dynamic_blocks", "false"),
    ("forebay.edge_budget", "200"),
    ("forebay.job_budget", "1000"),
    ("forebay.admission", "paper"),
    ("forebay.admission", "off"),
];
