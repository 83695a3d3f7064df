//! Protobuf forms of the nodes that write and read blocks, and the codec for them.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{self, PhysicalExprNode};
use prost::Message;

use super::cut::BlockSize;
use super::groups::Groups;
use super::hash_writer::HashWriterExec;
use super::range_window::{OverAll, RangeWindowExec, RowsOfRuns};
use super::reader::BlockReaderExec;
use super::rest::Rest;
use super::writer::BlockWriterExec;
use crate::graph::{KeyRange, RowKey};
use crate::protocol::location::BlockLocation;
use crate::protocol::messages::TaskName;

/// Before the bytes of our nodes.
const MAGIC: &[u8] = b"forebay-block-6:";

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4")]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    Writer(Writer),
    #[prost(message, tag = "2")]
    Reader(Reader),
    #[prost(message, tag = "3")]
    HashWriter(HashWriter),
    #[prost(message, tag = "4")]
    RangeWindow(RangeWindow),
}

#[derive(Clone, PartialEq, Message)]
struct Writer {
    #[prost(message, required, tag = "1")]
    size: BlockSize,
    #[prost(uint32, repeated, tag = "2")]
    skipped: Vec<u32>,
    #[prost(bool, tag = "3")]
    tells_keys: bool,
}

#[derive(Clone, PartialEq, Message)]
struct HashWriter {
    /// As `datafusion_proto` writes them.
    #[prost(bytes = "vec", repeated, tag = "1")]
    keys: Vec<Vec<u8>>,
    #[prost(uint32, tag = "2")]
    partitions: u32,
    #[prost(uint64, tag = "3")]
    round_bytes: u64,
    #[prost(message, required, tag = "4")]
    groups: WireGroups,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireGroups {
    #[prost(uint32, tag = "1")]
    width: u32,
    #[prost(uint32, tag = "2")]
    slices: u32,
    #[prost(uint32, tag = "3")]
    slice: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Reader {
    #[prost(uint32, tag = "1")]
    stage: u32,
    /// As `datafusion_proto` writes it.
    #[prost(bytes = "vec", tag = "2")]
    schema: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    partitions: Vec<Partition>,
    /// The first key of a range, and the first behind it.
    #[prost(bytes = "vec", optional, tag = "4")]
    from: Option<Vec<u8>>,
    #[prost(bytes = "vec", optional, tag = "5")]
    to: Option<Vec<u8>>,
    #[prost(message, optional, tag = "6")]
    rest: Option<WireRest>,
}

#[derive(Clone, PartialEq, Message)]
struct RangeWindow {
    #[prost(uint32, tag = "1")]
    stage: u32,
    #[prost(message, repeated, tag = "2")]
    columns: Vec<Column>,
    #[prost(uint64, tag = "3")]
    before: u64,
    #[prost(uint64, tag = "4")]
    all: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Column {
    #[prost(uint32, tag = "1")]
    at: u32,
    #[prost(oneof = "How", tags = "2, 3, 4, 5")]
    how: Option<How>,
}

/// An [`OverAll`].
#[derive(Clone, Copy, PartialEq, prost::Oneof)]
enum How {
    #[prost(bool, tag = "2")]
    Counted(bool),
    #[prost(bool, tag = "3")]
    PercentRank(bool),
    #[prost(bool, tag = "4")]
    CumeDist(bool),
    #[prost(uint64, tag = "5")]
    Ntile(u64),
}

#[derive(Clone, PartialEq, Message)]
struct WireRest {
    #[prost(message, required, tag = "1")]
    task: TaskName,
    #[prost(uint32, tag = "2")]
    told: u32,
    #[prost(uint32, repeated, tag = "3")]
    partitions: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Partition {
    #[prost(message, repeated, tag = "1")]
    blocks: Vec<BlockLocation>,
}

impl RangeWindow {
    fn of(node: &RangeWindowExec) -> Self {
        let column = |(at, how): &(usize, OverAll)| {
            let how = match how {
                OverAll::Counted => How::Counted(true),
                OverAll::PercentRank => How::PercentRank(true),
                OverAll::CumeDist => How::CumeDist(true),
                OverAll::Ntile(tiles) => How::Ntile(*tiles),
            };
            Column { at: *at as u32, how: Some(how) }
        };
        let columns = node.columns().iter().map(column).collect();
        let RowsOfRuns { before, all } = node.rows();
        Self { stage: node.stage(), columns, before, all }
    }

    fn node(self, input: Arc<dyn ExecutionPlan>) -> Result<RangeWindowExec> {
        let column = |column: &Column| {
            let how = match column.how? {
                How::Counted(_) => OverAll::Counted,
                How::PercentRank(_) => OverAll::PercentRank,
                How::CumeDist(_) => OverAll::CumeDist,
                How::Ntile(tiles) => OverAll::Ntile(tiles),
            };
            Some((column.at as usize, how))
        };
        let Self { stage, columns, before, all } = self;
        let known: Option<_> = columns.iter().map(column).collect();
        let known =
            known.ok_or_else(|| internal_datafusion_err!("columns {columns:?} of a range"))?;
        Ok(RangeWindowExec::try_new(input, stage, known)?.with_rows(RowsOfRuns { before, all }))
    }
}

/// Writes and reads [`BlockWriterExec`], [`HashWriterExec`], [`BlockReaderExec`] and [`RangeWindowExec`]; all else is
/// the inner codec's.
pub struct BlockCodec {
    inner: Arc<dyn PhysicalExtensionCodec>,
}

impl BlockCodec {
    /// Leaves to `inner` what is no block node.
    pub fn new(inner: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Self { inner }
    }
}

impl fmt::Debug for BlockCodec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCodec").field("inner", &self.inner).finish()
    }
}

impl PhysicalExtensionCodec for BlockCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(message) = bytes.strip_prefix(MAGIC) else {
            return self.inner.try_decode(bytes, inputs, context, converter);
        };
        let damaged = |e: &dyn fmt::Display| internal_datafusion_err!("a damaged block node: {e}");
        let node = Node::decode(message).map_err(|e| damaged(&e))?;
        match (node.kind, inputs) {
            (Some(Kind::Writer(writer)), [input]) => {
                let node = BlockWriterExec::new(Arc::clone(input), writer.size);
                let node = node.with_skipped(writer.skipped).with_keys(writer.tells_keys);
                Ok(Arc::new(node))
            }
            (Some(Kind::HashWriter(writer)), [input]) => {
                let context = PhysicalPlanDecodeContext::new(context, self);
                let key = |bytes: &Vec<u8>| {
                    let node = PhysicalExprNode::decode(bytes.as_slice());
                    let node = node.map_err(|e| damaged(&e))?;
                    converter.proto_to_physical_expr(&node, &input.schema(), &context)
                };
                let keys = writer.keys.iter().map(key).collect::<Result<_>>()?;
                let HashWriter { partitions, round_bytes, groups, .. } = writer;
                let WireGroups { width, slices, slice } = groups;
                let groups = Groups { width, slices, slice };
                if !groups.is_sound(partitions) {
                    return Err(damaged(&format!("{groups:?} of partitions")));
                }
                let writer = HashWriterExec::new(Arc::clone(input), keys, partitions, round_bytes);
                Ok(Arc::new(writer.in_groups(groups)))
            }
            (Some(Kind::Reader(reader)), []) => {
                let schema = protobuf::Schema::decode(reader.schema.as_slice());
                let schema = Schema::try_from(&schema.map_err(|e| damaged(&e))?)?;
                let partitions = reader.partitions.into_iter().map(|part| part.blocks).collect();
                let node = BlockReaderExec::new(reader.stage, Arc::new(schema), partitions);
                let key = |bytes: Option<Vec<u8>>| bytes.map(|bytes| RowKey::new(&bytes));
                let range = KeyRange { from: key(reader.from), to: key(reader.to) };
                let node = node.in_range(range);
                Ok(Arc::new(match reader.rest {
                    Some(WireRest { task, told, partitions }) => {
                        node.followed_by(Rest { task, told, partitions })
                    }
                    None => node,
                }))
            }
            (Some(Kind::RangeWindow(window)), [input]) => {
                Ok(Arc::new(window.node(Arc::clone(input))?))
            }
            (kind, inputs) => internal_err!("a block node {kind:?} of {} inputs", inputs.len()),
        }
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let kind = if let Some(writer) = node.downcast_ref::<BlockWriterExec>() {
            let (size, skipped) = (writer.size(), writer.skipped().to_vec());
            Kind::Writer(Writer { size, skipped, tells_keys: writer.tells_keys() })
        } else if let Some(writer) = node.downcast_ref::<HashWriterExec>() {
            let keys = writer
                .keys()
                .iter()
                .map(|key| Ok(converter.physical_expr_to_proto(key, self)?.encode_to_vec()));
            let (partitions, round_bytes) = (writer.partitions(), writer.round_bytes());
            let keys = keys.collect::<Result<_>>()?;
            let Groups { width, slices, slice } = writer.groups();
            let groups = WireGroups { width, slices, slice };
            Kind::HashWriter(HashWriter { keys, partitions, round_bytes, groups })
        } else if let Some(reader) = node.downcast_ref::<BlockReaderExec>() {
            let schema = protobuf::Schema::try_from(reader.schema().as_ref())?.encode_to_vec();
            let partitions = reader.partitions().iter();
            let partitions = partitions.map(|blocks| Partition { blocks: blocks.clone() });
            let (stage, partitions) = (reader.stage(), partitions.collect());
            let bytes = |key: &Option<RowKey>| key.as_ref().map(|key| key.bytes().to_vec());
            let KeyRange { from, to } = reader.range();
            let (from, to) = (bytes(from), bytes(to));
            let rest = reader.rest().cloned();
            let rest =
                rest.map(|Rest { task, told, partitions }| WireRest { task, told, partitions });
            Kind::Reader(Reader { stage, schema, partitions, from, to, rest })
        } else if let Some(window) = node.downcast_ref::<RangeWindowExec>() {
            Kind::RangeWindow(RangeWindow::of(window))
        } else {
            return self.inner.try_encode(node, bytes, converter);
        };
        bytes.extend_from_slice(MAGIC);
        bytes.extend(Node { kind: Some(kind) }.encode_to_vec());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use datafusion::physical_plan::displayable;
    use datafusion_proto::bytes::{
        physical_plan_from_bytes_with_extension_codec, physical_plan_to_bytes_with_extension_codec,
    };
    use datafusion_proto::physical_plan::DefaultPhysicalExtensionCodec;

    use super::*;

    #[test]
    fn what_deals_rows_out_and_what_reads_a_segment_come_back() {
        let fields = vec![Field::new("n", DataType::Int64, true)];
        let schema = Arc::new(Schema::new(fields));
        let segment = BlockLocation { rows: 7, segment_at: Some(0), ..BlockLocation::default() };
        let whole = BlockLocation { segment_at: None, ..segment.clone() };
        let parts = vec![vec![segment, whole], vec![]];
        let task = TaskName { job: "job".to_owned(), stage: 4, task: 7 };
        let rest = Rest { task, told: 5, partitions: vec![2, 6] };
        let reader = BlockReaderExec::new(3, Arc::clone(&schema), parts.clone());
        let reader = Arc::new(reader.followed_by(rest.clone()));
        let key = col("n", &schema).unwrap();
        let sum = binary(Arc::clone(&key), Operator::Plus, lit(1_i64), &schema).unwrap();
        let groups = Groups { width: 4, slices: 3, slice: 2 };
        let writer = HashWriterExec::new(reader, vec![key, sum], 9, 1000).in_groups(groups);
        let writer = Arc::new(writer);
        let codec = BlockCodec::new(Arc::new(DefaultPhysicalExtensionCodec {}));
        let bytes = physical_plan_to_bytes_with_extension_codec(writer, &codec).unwrap();
        let context = TaskContext::default();
        let found =
            physical_plan_from_bytes_with_extension_codec(&bytes, &context, &codec).unwrap();
        let text = displayable(found.as_ref()).indent(true).to_string();
        let writes = "HashWriterExec: keys=[n@0, n@0 + 1], partitions=9 in groups of 4 and 3 slices, \
                      bytes_max=1000";
        assert_eq!(
            text,
            format!("{writes}\n  BlockReaderExec: stage=3, blocks=2, and what comes\n")
        );
        let reader: &BlockReaderExec = found.children()[0].downcast_ref().unwrap();
        assert_eq!((reader.partitions(), reader.rest()), (&parts[..], Some(&rest)));
        assert_eq!(found.downcast_ref::<HashWriterExec>().unwrap().groups(), groups);
    }

    #[test]
    fn groups_that_cannot_be_are_refused() {
        for (width, slices, slice) in [(0, 1, 0), (1, 0, 0), (2, 3, 3), (1, 2, 0), (4, u32::MAX, 0)]
        {
            let groups = Groups { width, slices, slice };
            let schema = Arc::new(Schema::empty());
            let reader = Arc::new(BlockReaderExec::new(3, schema, vec![vec![]]));
            let writer = HashWriterExec::new(reader, vec![], 9, 1000).in_groups(groups);
            let codec = BlockCodec::new(Arc::new(DefaultPhysicalExtensionCodec {}));
            let bytes =
                physical_plan_to_bytes_with_extension_codec(Arc::new(writer), &codec).unwrap();
            let context = TaskContext::default();
            let error = physical_plan_from_bytes_with_extension_codec(&bytes, &context, &codec);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("a damaged block node"), "{error}");
        }
    }

    #[test]
    fn windows_of_ranges_come_back() {
        let fields = ["a", "b", "c"].map(|name| Field::new(name, DataType::UInt64, false));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let reader = Arc::new(BlockReaderExec::new(3, schema, vec![vec![]]));
        let columns =
            vec![(0, OverAll::Counted), (1, OverAll::PercentRank), (2, OverAll::Ntile(9))];
        let rows = RowsOfRuns { before: u64::MAX, all: 7 };
        let window = RangeWindowExec::try_new(reader, 3, columns.clone()).unwrap().with_rows(rows);
        let codec = BlockCodec::new(Arc::new(DefaultPhysicalExtensionCodec {}));
        let bytes = physical_plan_to_bytes_with_extension_codec(Arc::new(window), &codec).unwrap();
        let context = TaskContext::default();
        let found =
            physical_plan_from_bytes_with_extension_codec(&bytes, &context, &codec).unwrap();
        let found: &RangeWindowExec = found.downcast_ref().unwrap();
        assert_eq!((found.columns(), found.rows(), found.stage()), (&columns[..], rows, 3));
        let text = displayable(found).one_line().to_string();
        let shown = "RangeWindowExec: stage=3, columns=[counted@0, percent_rank@1, ntile(9)@2]";
        assert_eq!(text.trim_end(), shown);
    }
}
