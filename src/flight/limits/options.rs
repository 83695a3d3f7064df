//! Which options clients may set, and to what: a session is one of many, and some options make a
//! query take whatever the server has.

use std::ops::RangeInclusive;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{LogicalPlan, Statement};

/// What an option may be set to.
enum Allowed {
    /// What it is for DataFusion or Forebay, who check it: it takes no memory and no time.
    Anything,
    /// A whole number.
    Number(RangeInclusive<u64>),
    /// A number of bytes, which may have a unit.
    Bytes(RangeInclusive<u64>),
}

const MIB: u64 = 1 << 20;

/// The options of clients. What a cluster may hold for one query is not more than it is at first.
const OPTIONS: &[(&str, Allowed)] = &[
    ("datafusion.catalog.default_catalog", Allowed::Anything),
    ("datafusion.catalog.default_schema", Allowed::Anything),
    ("datafusion.execution.batch_size", Allowed::Number(1..=65_536)),
    ("datafusion.execution.collect_statistics", Allowed::Anything),
    ("datafusion.execution.parquet.binary_as_string", Allowed::Anything),
    ("datafusion.execution.parquet.bloom_filter_on_read", Allowed::Anything),
    ("datafusion.execution.parquet.enable_page_index", Allowed::Anything),
    ("datafusion.execution.parquet.pruning", Allowed::Anything),
    ("datafusion.execution.parquet.pushdown_filters", Allowed::Anything),
    ("datafusion.execution.parquet.reorder_filters", Allowed::Anything),
    ("datafusion.execution.parquet.schema_force_view_types", Allowed::Anything),
    ("datafusion.execution.parquet.skip_metadata", Allowed::Anything),
    ("datafusion.execution.target_partitions", Allowed::Number(1..=256)),
    ("datafusion.execution.time_zone", Allowed::Anything),
    ("datafusion.explain.format", Allowed::Anything),
    ("datafusion.explain.logical_plan_only", Allowed::Anything),
    ("datafusion.explain.physical_plan_only", Allowed::Anything),
    ("datafusion.explain.show_statistics", Allowed::Anything),
    ("datafusion.optimizer.enable_dynamic_filter_pushdown", Allowed::Anything),
    ("datafusion.optimizer.enable_round_robin_repartition", Allowed::Anything),
    ("datafusion.optimizer.filter_null_join_keys", Allowed::Anything),
    ("datafusion.optimizer.hash_join_single_partition_threshold", Allowed::Number(0..=128 * MIB)),
    ("datafusion.optimizer.hash_join_single_partition_threshold_rows", Allowed::Number(0..=MIB)),
    ("datafusion.optimizer.prefer_existing_sort", Allowed::Anything),
    ("datafusion.optimizer.prefer_existing_union", Allowed::Anything),
    ("datafusion.optimizer.prefer_hash_join", Allowed::Anything),
    ("datafusion.optimizer.repartition_aggregations", Allowed::Anything),
    ("datafusion.optimizer.repartition_file_scans", Allowed::Anything),
    ("datafusion.optimizer.repartition_joins", Allowed::Anything),
    ("datafusion.optimizer.repartition_sorts", Allowed::Anything),
    ("datafusion.optimizer.repartition_windows", Allowed::Anything),
    ("datafusion.sql_parser.default_null_ordering", Allowed::Anything),
    ("datafusion.sql_parser.dialect", Allowed::Anything),
    ("datafusion.sql_parser.enable_ident_normalization", Allowed::Anything),
    ("datafusion.sql_parser.parse_float_as_decimal", Allowed::Anything),
    ("forebay.admission", Allowed::Anything),
    ("forebay.block_bytes", Allowed::Bytes(1..=128 * MIB)),
    ("forebay.byte_budget", Allowed::Bytes(1..=64 * MIB)),
    ("forebay.dynamic_blocks", Allowed::Anything),
    ("forebay.edge_budget", Allowed::Bytes(1..=1024 * MIB)),
    ("forebay.exchange", Allowed::Anything),
    ("forebay.job_budget", Allowed::Bytes(1..=16 * 1024 * MIB)),
    ("forebay.merge_equal_inferences", Allowed::Anything),
    ("forebay.merge_segments_below", Allowed::Bytes(0..=1024 * MIB)),
    ("forebay.merge_segments_from", Allowed::Number(0..=u64::MAX)),
    ("forebay.no_progress_limit_s", Allowed::Number(0..=86_400)),
    ("forebay.order_filters_by_cost", Allowed::Anything),
    ("forebay.ordered_exchanges", Allowed::Anything),
    ("forebay.part_bytes", Allowed::Bytes(1..=1024 * 1024 * MIB)),
    ("forebay.partition_bytes", Allowed::Bytes(0..=1024 * 1024 * MIB)),
    ("forebay.prune_unused_columns", Allowed::Anything),
    ("forebay.push_filters_below_inference", Allowed::Anything),
    ("forebay.push_limits_below_inference", Allowed::Anything),
    ("forebay.push_semi_joins_below_inference", Allowed::Anything),
    ("forebay.push_topk_below_inference", Allowed::Anything),
    ("forebay.range_bytes", Allowed::Bytes(0..=1024 * MIB)),
    ("forebay.resumable", Allowed::Anything),
    ("forebay.stage_models", Allowed::Anything),
    ("forebay.share_equal_inputs", Allowed::Anything),
    ("forebay.stream_stages", Allowed::Anything),
    ("forebay.weight", Allowed::Number(1..=100)),
];

/// Whether a client may run this plan, if it sets or resets an option.
///
/// # Errors
/// If the option is not for clients, or its value out of bounds.
pub(in crate::flight) fn check(plan: &LogicalPlan) -> Result<()> {
    match plan {
        LogicalPlan::Statement(Statement::SetVariable(set)) => {
            check_value(&set.variable, &set.value)
        }
        LogicalPlan::Statement(Statement::ResetVariable(reset)) => {
            allowed(&reset.variable).map(|_| ())
        }
        _ => Ok(()),
    }
}

fn check_value(variable: &str, value: &str) -> Result<()> {
    let (found, range, unit) = match allowed(variable)? {
        Allowed::Anything => return Ok(()),
        Allowed::Number(range) => (value.trim().parse().ok(), range, ""),
        Allowed::Bytes(range) => {
            let bytes = value.trim().parse::<bytesize::ByteSize>();
            (bytes.ok().map(|bytes| bytes.as_u64()), range, " bytes")
        }
    };
    match found {
        Some(number) if range.contains(&number) => Ok(()),
        _ => plan_err!(
            "invalid value '{value}' for '{variable}': clients of this server may set it to a whole \
             number from {} to {}{unit}",
            range.start(),
            range.end()
        ),
    }
}

fn allowed(variable: &str) -> Result<&'static Allowed> {
    let variable = variable.to_lowercase();
    // As DataFusion's parser has it.
    let name = match variable.as_str() {
        "timezone" | "time.zone" => "datafusion.execution.time_zone",
        name => name,
    };
    if let Some((_, allowed)) = OPTIONS.iter().find(|(known, _)| *known == name) {
        return Ok(allowed);
    }
    let names: Vec<_> = OPTIONS.iter().map(|(name, _)| *name).collect();
    plan_err!(
        "'{variable}' is not an option that clients of this server may set; those are {}",
        names.join(", ")
    )
}
