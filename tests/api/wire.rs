//! Forebay's operators as bytes: everything survives, nothing damaged is taken for a plan.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Fields, Schema};
use datafusion::config::{ConfigOptions, ExtensionOptions};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_expr::expressions::{Column, binary, cast};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, displayable, empty::EmptyExec,
};
use datafusion_proto::bytes::{
    physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
};
use datafusion_proto::physical_plan::{DefaultPhysicalProtoConverter, PhysicalExtensionCodec};
use forebay::prelude::*;
use forebay::{Catalog, ForebayConfig, Inventory};
use forebay_engine::{
    BoundedProjectionExec, ExchangeOptions, InferenceExec, Placement, RestoreOrderExec, Sharing,
    StreamingExchangeExec, TransformExec,
};
use forebay_planner::ForebayPhysicalCodec;
use forebay_udf::feature;
use forebay_udf::model::{
    Activation, BatchCaps, BatchLimits, Curve, Determinism, DeviceChoice, EmulatedLoss, Head,
    ModelDeclaration, Number, OnError, Precision, Quality, Resources, RuntimeKind, Share, Side,
    Signature, TransformKind, parse_type,
};
use forebay_udf::runtime::Device;
use proptest::prelude::*;

type Plan = Arc<dyn ExecutionPlan>;

/// Columns of every type that a model may have.
fn every_type() -> Fields {
    let types = [
        "STRING",
        "BINARY",
        "BOOLEAN",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "FLOAT[384]",
        "INT[2]",
        "DOUBLE[1]",
        "BIGINT[3]",
        "STRING[]",
        "INT[]",
        "FLOAT[]",
    ];
    let field = |(at, name): (usize, &&str)| {
        Field::new(format!("c {at} \"ü\""), parse_type(name).unwrap(), true)
    };
    types.iter().enumerate().map(field).collect()
}

/// No field is what a declaration has by default.
fn declaration() -> ModelDeclaration {
    ModelDeclaration {
        name: "a \"model\"".to_owned(),
        version: "7-β".to_owned(),
        location: "s3://bucket/a%20folder/".parse().unwrap(),
        content_hash: "0123abcd".to_owned(),
        signature: Signature { inputs: every_type(), outputs: every_type() },
        transform: TransformKind::Tensor,
        runtime: RuntimeKind::Emulated {
            service_ms: i64::MAX as u64,
            fail_on: Some("line\nbreak".to_owned()),
            memory_rows: Some(u32::MAX),
            curve: Some(Curve {
                unit_ns: i64::MAX as u64,
                unit_bytes: 7,
                free_bytes: vec![[0, 1], [2, 3]],
            }),
            loses: Some(EmulatedLoss { device: u16::MAX, after: u32::MAX }),
        },
        resources: Resources {
            cpus: Share::try_from(0.001).unwrap(),
            gpus: Share::try_from(0.333).unwrap(),
            memory: u64::MAX,
            gpu_memory: (1 << 53) + 1,
            worker_labels: ["disk=\"fast\"".to_owned(), "zone=".to_owned()].into(),
        },
        batch: BatchLimits {
            max_rows: 3,
            max_tokens: Some(5),
            max_bytes: Some(i64::MAX as u64),
            window_rows: 11,
        },
        allow_native: Some(true),
        batch_caps: BatchCaps {
            rows: Some(2),
            tokens: Some(4),
            bytes: Some(i64::MAX as u64),
            window_rows: Some(6),
            gpu_memory: Some(8),
        },
        device: DeviceChoice::Cuda(Some(3)),
        needs_accelerator: true,
        max_replicas: Some(13),
        precision: Precision::Bf16,
        determinism: Determinism::Stable,
        on_error: OnError::Route,
        // Has no short decimal form.
        max_error_ratio: 0.1 + 0.2,
        output_prefix: "p_".to_owned(),
        prompts: [("query".to_owned(), "query: ".to_owned())].into(),
        prompt: Some("query".to_owned()),
        precisions: Some([("bf16".to_owned(), Number(0.1 + 0.2))].into()),
        quality: [("int8".to_owned(), quality())].into(),
        description: Some("format = 1\nname = \"größer\"\n".to_owned()),
    }
}

fn quality() -> Quality {
    let mean_cosine = Some(Number(0.1 + 0.2));
    Quality { rows: 17, mean_cosine, least_cosine: None, equal_labels: None, correlation: None }
}

/// One text and one pair of numbers.
fn small(text: bool) -> Arc<ModelDeclaration> {
    let mut model = declaration();
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    model.signature.inputs = match text {
        true => vec![field("text", DataType::Utf8)].into(),
        false => vec![field("n", DataType::Int64), field("x", DataType::Float32)].into(),
    };
    model.signature.outputs =
        vec![field("label", DataType::Utf8), field("score", DataType::Float64)].into();
    if text {
        let arguments = vec!["input_ids".to_owned(), "attention_mask".to_owned()];
        let (tokenizer, truncation) = ("tokenizer.json".to_owned(), Side::Left);
        model.transform = TransformKind::Tokenize {
            tokenizer,
            max_tokens: 77,
            pad_id: -1,
            vocabulary: Some(40),
            template: Some("{text}\n{other}".to_owned()),
            truncation,
            arguments,
        };
        let labels = vec!["größer \"als\"".to_owned(), "\n".to_owned()];
        model.runtime = RuntimeKind::Onnx {
            program: "onnx/model.onnx".to_owned(),
            precision: Precision::Int8,
            results: vec!["logits".to_owned()],
            one_row: true,
            head: Some(Head::Classify { activation: Activation::Sigmoid, labels }),
        };
    }
    Arc::new(model)
}

fn input() -> Plan {
    let field = |name: &str, data_type| Field::new(name, data_type, true);
    let metadata = [("key".to_owned(), "value".to_owned())].into();
    let fields = vec![
        field("text", DataType::Utf8),
        field("n", DataType::Int64),
        field("x", DataType::Float32),
    ];
    Arc::new(EmptyExec::new(Arc::new(Schema::new_with_metadata(fields, metadata))))
}

fn column(name: &str, at: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(name, at))
}

/// Sorted by two keys, in ways that are not the default.
fn sorted(input: Plan) -> Plan {
    let key = |name, at, descending, nulls_first| {
        let options = arrow::compute::SortOptions { descending, nulls_first };
        PhysicalSortExpr::new(column(name, at), options)
    };
    let keys = [key("n", 1, true, false), key("text", 0, false, true)];
    Arc::new(SortExec::new(LexOrdering::new(keys).unwrap(), input))
}

/// All four operators, with as few defaults as there can be.
fn operators(text: bool, ordered: bool) -> Plan {
    let model = small(text);
    let args = match text {
        true => vec![column("text", 0)],
        false => {
            let schema = input().schema();
            let sum = binary(
                column("n", 1),
                datafusion::logical_expr::Operator::Plus,
                column("n", 1),
                &schema,
            );
            vec![sum.unwrap(), column("x", 2)]
        }
    };
    let below = if ordered { sorted(input()) } else { input() };
    let transform = TransformExec::try_new(below, Arc::clone(&model), args).unwrap();
    let options = ExchangeOptions {
        replicas: 3,
        byte_budget: 12_345,
        byte_budget_max: 123_456,
        batch: model.batch.clone(),
        ordered,
        sharing: if text { Sharing::EqualInputs } else { Sharing::None },
        no_progress_limit: Some(Duration::new(7, 1)),
    };
    let exchange = StreamingExchangeExec::try_new(Arc::new(transform), options).unwrap();
    let devices = vec![Device::Cuda(1), Device::Cpu, Device::Emulated(u16::MAX)];
    let names = vec![None, Some("the score".to_owned()), Some("_error".to_owned())];
    let inference =
        InferenceExec::try_new(Arc::new(exchange), model, names, Placement { devices }).unwrap();
    let inference = Arc::new(inference.with_no_progress_limit(Some(Duration::from_millis(1))));
    match ordered {
        true => Arc::new(RestoreOrderExec::try_new(inference).unwrap()),
        false => inference,
    }
}

fn encode(plan: &Plan) -> Vec<u8> {
    let codec = ForebayPhysicalCodec::default();
    physical_plan_to_bytes_with_extension_codec(Arc::clone(plan), &codec).unwrap().to_vec()
}

/// In a process that has registered nothing.
fn decode(bytes: &[u8]) -> Plan {
    let codec = ForebayPhysicalCodec::default();
    let context = TaskContext::default();
    physical_plan_from_bytes_with_extension_codec(bytes, &context, &codec).unwrap()
}

fn text(plan: &Plan) -> String {
    displayable(plan.as_ref()).set_show_schema(true).indent(true).to_string()
}

/// The topmost operator of this type.
fn find<T: ExecutionPlan>(plan: &Plan) -> Option<&T> {
    plan.downcast_ref::<T>().or_else(|| plan.children().into_iter().find_map(find::<T>))
}

#[test]
fn a_declaration_survives_whole() {
    for model in [declaration(), small(true).as_ref().clone(), small(false).as_ref().clone()] {
        let text = model.to_text().unwrap();
        assert_eq!(ModelDeclaration::from_text(&text).unwrap(), model);
    }
    // What cannot be written is refused, not changed.
    let mut model = declaration();
    model.signature.inputs = vec![Field::new("c", DataType::Utf8View, true)].into();
    let error = model.to_text().unwrap_err().to_string();
    assert!(error.contains("does not survive"), "{error}");
    let error = ModelDeclaration::from_text("name = 'm'").unwrap_err().to_string();
    assert!(error.contains("a model's declaration: missing field"), "{error}");
}

#[test]
fn every_option_of_every_operator_survives() {
    for (is_text, ordered) in [(true, true), (true, false), (false, true), (false, false)] {
        let plan = operators(is_text, ordered);
        let bytes = encode(&plan);
        let sent = decode(&bytes);
        assert_eq!(text(&sent), text(&plan));
        assert_eq!(sent.schema(), plan.schema());
        assert_eq!(encode(&sent), bytes);

        let (was, is): (&InferenceExec, &InferenceExec) =
            (find(&plan).unwrap(), find(&sent).unwrap());
        assert_eq!(is.model(), was.model());
        assert_eq!(is.output_names(), was.output_names());
        assert_eq!(is.placement(), was.placement());
        assert_eq!(is.no_progress_limit(), Some(Duration::from_millis(1)));

        let (was, is): (&StreamingExchangeExec, &StreamingExchangeExec) =
            (find(&plan).unwrap(), find(&sent).unwrap());
        assert_eq!(is.options(), was.options());
        assert_eq!(is.required_input_ordering(), was.required_input_ordering());
        assert_eq!(is.required_input_ordering()[0].is_some(), ordered);

        let (was, is): (&TransformExec, &TransformExec) =
            (find(&plan).unwrap(), find(&sent).unwrap());
        assert_eq!(is.model(), was.model());
        assert_eq!(is.args(), was.args());
        assert_eq!(is.schema(), was.schema());

        assert_eq!(sent.is::<RestoreOrderExec>(), ordered);
        assert_eq!(sent.output_ordering(), plan.output_ordering());
    }
}

/// The bytes of one operator without its input.
fn encode_one(node: &Plan) -> Vec<u8> {
    let (codec, mut bytes) = (ForebayPhysicalCodec::default(), Vec::new());
    let converter = DefaultPhysicalProtoConverter {};
    codec.try_encode(Arc::clone(node), &mut bytes, &converter).unwrap();
    bytes
}

fn decode_one(bytes: &[u8], inputs: &[Plan]) -> Result<Plan, String> {
    let codec = ForebayPhysicalCodec::default();
    let (context, converter) = (TaskContext::default(), DefaultPhysicalProtoConverter {});
    codec.try_decode(bytes, inputs, &context, &converter).map_err(|error| error.to_string())
}

/// Each operator with its input.
fn all_operators() -> Vec<(Plan, Plan)> {
    let mut found = vec![];
    let mut next = operators(true, true);
    while !next.is::<SortExec>() {
        let input = Arc::clone(next.children()[0]);
        found.push((next, Arc::clone(&input)));
        next = input;
    }
    assert_eq!(found.len(), 4);
    found.push((bounded(input()), input()));
    found
}

/// A function, and a name that is not a column's.
fn bounded(input: Plan) -> Plan {
    let call = |function: Arc<ScalarUDF>, args| -> Arc<dyn PhysicalExpr> {
        let options = Arc::new(ConfigOptions::default());
        Arc::new(ScalarFunctionExpr::try_new(function, args, &input.schema(), options).unwrap())
    };
    let decode = feature::functions().into_iter().find(|known| known.name() == "audio_decode");
    let bytes = cast(column("text", 0), &input.schema(), DataType::Binary).unwrap();
    let exprs = [
        ProjectionExpr { expr: call(decode.unwrap(), vec![bytes]), alias: "a \"name\"".into() },
        ProjectionExpr { expr: column("x", 2), alias: "x".into() },
    ];
    let projection = ProjectionExec::try_new(exprs, Arc::clone(&input)).unwrap();
    Arc::new(BoundedProjectionExec::try_new(Arc::new(projection)).unwrap())
}

#[test]
fn a_bounded_projection_survives() {
    let plan = bounded(input());
    let expected = "BoundedProjectionExec: expr=[audio_decode(CAST(text@0 AS Binary)) as a \"name\", \
                    x@2 as x]";
    assert!(text(&plan).starts_with(expected), "{}", text(&plan));
    let sent = decode(&encode(&plan));
    assert_eq!(text(&sent), text(&plan));
    assert_eq!(sent.schema(), plan.schema());
}

/// Where the operator begins: behind the magic and the format.
const OPERATOR: usize = 8 + 2;

#[test]
fn what_is_cut_short_is_refused() {
    for (node, input) in all_operators() {
        let bytes = encode_one(&node);
        assert!(decode_one(&bytes, std::slice::from_ref(&input)).is_ok());
        for end in 0..bytes.len() {
            assert!(decode_one(&bytes[..end], std::slice::from_ref(&input)).is_err(), "{end}");
        }
        let error = decode_one(&bytes, &[]).unwrap_err();
        assert!(error.contains(&format!("{} takes one input, found 0", node.name())), "{error}");
        let error = decode_one(&bytes, &[Arc::clone(&input), input]).unwrap_err();
        assert!(error.contains("takes one input, found 2"), "{error}");
    }
}

/// Connections hand over what was sent. If one does not, there is an error or another plan.
#[test]
fn what_is_changed_is_no_panic() {
    for (node, input) in all_operators() {
        let bytes = encode_one(&node);
        for at in 0..bytes.len() {
            for bit in [1, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= bit;
                let read = decode_one(&changed, std::slice::from_ref(&input));
                assert!(at >= OPERATOR || read.is_err(), "{at}");
            }
        }
    }
}

#[test]
fn another_format_is_refused_with_both_named() {
    let (node, input) = all_operators().remove(0);
    let bytes = encode_one(&node);
    let reads = format!("that reads format {}", ForebayPhysicalCodec::FORMAT);
    // The message of another format need not be one of this format.
    let format = ForebayPhysicalCodec::FORMAT + 1;
    let other = [&bytes[..9], &[format as u8, 0xff], &bytes[OPERATOR..]].concat();
    let mut newer = bytes.clone();
    newer[9] = format as u8;
    let named = format!("a plan of format {format}");
    for (bytes, part) in [(newer, named.as_str()), (other, "of another version")] {
        let error = decode_one(&bytes, std::slice::from_ref(&input)).unwrap_err();
        assert!(error.contains(part), "{error}");
        assert!(part != named || error.contains(&reads), "{error}");
    }
}

#[test]
fn an_operator_over_another_input_is_refused_by_name() {
    for (node, _) in all_operators() {
        let empty: Plan = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        match decode_one(&encode_one(&node), &[empty]) {
            // An exchange hands over whatever there is.
            Ok(plan) => assert!(plan.is::<StreamingExchangeExec>()),
            Err(error) => assert!(error.contains(&format!("{} cannot be", node.name())), "{error}"),
        }
    }
}

proptest! {
    #[test]
    fn no_bytes_are_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (node, input) = all_operators().remove(1);
        let valid = encode_one(&node);
        prop_assert!(decode_one(&bytes, std::slice::from_ref(&input)).is_err());
        for start in [8, OPERATOR, OPERATOR + 1] {
            let mixed = [&valid[..start], &bytes].concat();
            prop_assert!(mixed == valid || decode_one(&mixed, std::slice::from_ref(&input)).is_err());
        }
    }
}

async fn session() -> ForebayContext {
    let forebay = ForebayContext::builder()
        .with_catalog(Catalog::in_memory())
        .with_inventory(Inventory::detect().with_cpus(2).with_emulated(1, 4 << 30))
        .with_config(SessionConfig::new().with_target_partitions(2))
        .build()
        .unwrap();
    forebay.register_model("sentiment", "tests/models/sentiment").await.unwrap();
    forebay
}

const QUERY: &str = "SELECT * FROM ml_predict((SELECT 'a' AS text), MODEL sentiment, \
                     DESCRIPTOR(text)) WHERE label <> 'x' LIMIT 3";

async fn plan_of(forebay: &ForebayContext, query: &str) -> Plan {
    forebay.sql(query).await.unwrap().create_physical_plan().await.unwrap()
}

#[tokio::test]
async fn the_verdict_stays_here() {
    let plan = plan_of(&session().await, &format!("EXPLAIN ANALYZE {QUERY}")).await;
    let codec = ForebayPhysicalCodec::default();
    let error = physical_plan_to_bytes_with_extension_codec(plan, &codec).unwrap_err();
    assert!(error.to_string().contains("send the plan below it"), "{error}");
}

#[tokio::test]
async fn functions_of_forebay_are_found_where_none_is_registered() {
    let forebay = session().await;
    let create = "CREATE TABLE vectors AS \
                  SELECT arrow_cast([1.0, 2.0], 'FixedSizeList(2, Float32)') AS v";
    forebay.sql(create).await.unwrap().collect().await.unwrap();
    for name in ["cosine_distance", "inner_product", "array_distance"] {
        let query = format!("SELECT {name}(v, v) AS d FROM vectors");
        let plan = plan_of(&forebay, &query).await;
        assert!(text(&plan).contains(name), "{}", text(&plan));
        let bytes = encode(&plan);
        // Nothing is registered here; and DataFusion's of the same names are not ours.
        assert_eq!(text(&decode(&bytes)), text(&plan));
        let codec = ForebayPhysicalCodec::default();
        let theirs = TaskContext::from(&SessionContext::new());
        let sent = physical_plan_from_bytes_with_extension_codec(&bytes, &theirs, &codec).unwrap();
        assert_eq!(encode(&sent), bytes);
    }
}

/// Where a session option is, once a query is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// In operators, which must take it along.
    Operators,
    /// In the shape of the plan.
    Planner,
    /// With the plan, as an option: what cuts it into stages reads them.
    Scheduler,
}

/// Every option, a value that is not its default, and where it goes.
const OPTIONS: &[(&str, &str, Kept)] = &[
    ("byte_budget", "12345", Kept::Operators),
    ("no_progress_limit_s", "77", Kept::Operators),
    ("share_equal_inputs", "false", Kept::Operators),
    ("exchange", "false", Kept::Planner),
    ("push_filters_below_inference", "false", Kept::Planner),
    ("push_limits_below_inference", "false", Kept::Planner),
    ("push_topk_below_inference", "false", Kept::Planner),
    ("push_semi_joins_below_inference", "false", Kept::Planner),
    ("merge_equal_inferences", "false", Kept::Planner),
    ("prune_unused_columns", "false", Kept::Planner),
    ("order_filters_by_cost", "false", Kept::Planner),
    ("ordered_exchanges", "false", Kept::Planner),
    // In what writes, which this query does not.
    ("file_bytes", "12345", Kept::Planner),
    ("write_on_workers", "false", Kept::Planner),
    // In what cuts a submitted write into parts.
    ("resumable", "true", Kept::Planner),
    ("stage_models", "true", Kept::Planner),
    ("part_bytes", "12345", Kept::Planner),
    ("block_bytes", "12345", Kept::Scheduler),
    ("range_bytes", "12345", Kept::Scheduler),
    ("partition_bytes", "12345", Kept::Scheduler),
    ("merge_segments_below", "12345", Kept::Scheduler),
    ("merge_segments_from", "12345", Kept::Scheduler),
    ("edge_budget", "12345", Kept::Scheduler),
    ("job_budget", "12345", Kept::Scheduler),
    ("dynamic_blocks", "false", Kept::Scheduler),
    ("admission", "paper", Kept::Scheduler),
    ("stream_stages", "false", Kept::Scheduler),
    ("weight", "3", Kept::Scheduler),
];

#[tokio::test]
async fn what_operators_need_of_the_session_is_in_the_plan() {
    let known: Vec<String> = OPTIONS.iter().map(|(key, ..)| format!("forebay.{key}")).collect();
    for entry in ForebayConfig::default().entries() {
        assert!(known.contains(&entry.key), "{} is new: say where it goes", entry.key);
    }
    for (key, value, kept) in OPTIONS {
        let (forebay, default) = (session().await, session().await);
        forebay.sql(&format!("SET forebay.{key} = {value}")).await.unwrap();
        // The process that decodes has the default options, or none at all.
        let bytes = encode(&plan_of(&forebay, QUERY).await);
        let sent = decode(&bytes);
        assert_eq!(encode(&sent), bytes, "{key}");
        let differs = bytes != encode(&plan_of(&default, QUERY).await);
        assert!(differs || *kept != Kept::Operators, "{key} does not reach the operators");
        let exchange = find::<StreamingExchangeExec>(&sent).map(|exchange| exchange.options());
        let inference = find::<InferenceExec>(&sent).unwrap();
        match *key {
            "byte_budget" => assert_eq!(exchange.unwrap().byte_budget, 12_345),
            "share_equal_inputs" => assert_eq!(exchange.unwrap().sharing, Sharing::None),
            "exchange" => assert!(exchange.is_none()),
            "no_progress_limit_s" => {
                let limit = Some(Duration::from_secs(77));
                assert_eq!(exchange.unwrap().no_progress_limit, limit);
                assert_eq!(inference.no_progress_limit(), limit);
            }
            _ => assert_ne!(*kept, Kept::Operators, "{key}: look for it in the operators"),
        }
    }
}
