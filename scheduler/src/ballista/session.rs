//! What the scheduler's sessions and the workers' tasks have in common.

use std::sync::Arc;

use ballista_core::extension::SessionConfigExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::serde::{
    BallistaCodec, BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec,
};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use forebay_engine::{Devices, Inventory};
use forebay_planner::{ForebayPhysicalCodec, install};
use forebay_udf::model::Catalog;
use tonic::transport::Channel;

use crate::ballista::part_codec::PartCodec;
use crate::block::wire::BlockCodec;
use crate::functions::Functions;

/// Bytes of one message at most: a task's plan holds the rows of the in-memory tables it reads.
pub(crate) const MESSAGE_BYTES: u32 = 512 << 20;

/// A scheduler as Ballista's workers know it.
pub(crate) fn scheduler(channel: Channel) -> SchedulerGrpcClient<Channel> {
    let limit = MESSAGE_BYTES as usize;
    let client = SchedulerGrpcClient::new(channel);
    client.max_encoding_message_size(limit).max_decoding_message_size(limit)
}

/// A session with all functions and options of Forebay, those of the program, and no tables.
pub(crate) fn state(
    devices: Arc<Devices>,
    runtime: Arc<RuntimeEnv>,
    functions: Functions,
) -> SessionState {
    let builder = SessionStateBuilder::new()
        .with_config(config())
        .with_runtime_env(runtime)
        .with_default_features();
    install(functions.register(builder), Catalog::in_memory(), devices).build()
}

/// The options that a session may set, at their defaults.
pub(crate) fn config() -> SessionConfig {
    SessionConfig::new_with_ballista()
        .with_information_schema(true)
        .with_ballista_grpc_client_max_message_size(MESSAGE_BYTES as usize)
}

/// A session for decoding plans, which needs no devices of its own.
pub(crate) fn decoding_state(runtime: Arc<RuntimeEnv>, functions: Functions) -> SessionState {
    state(Arc::new(Devices::new(Inventory::detect())), runtime, functions)
}

/// All functions that a plan may name.
pub(crate) fn functions(state: &SessionState) -> Arc<BallistaFunctionRegistry> {
    Arc::new(BallistaFunctionRegistry::from(state))
}

/// Forebay's operators and blocks, and Ballista's shuffle readers, which stand in a stage for what is dealt out.
pub(crate) fn physical_codec() -> Arc<ForebayPhysicalCodec> {
    let ballista = Arc::new(BallistaPhysicalExtensionCodec::default());
    let blocks = Arc::new(BlockCodec::new(ballista));
    Arc::new(ForebayPhysicalCodec::new(Arc::new(PartCodec::new(blocks))))
}

/// Both codecs, for a process that runs what it decodes. Logical plans never travel.
pub(crate) fn codec(stores: Arc<RuntimeEnv>) -> BallistaCodec<LogicalPlanNode, PhysicalPlanNode> {
    let physical = Arc::unwrap_or_clone(physical_codec()).with_stores(stores);
    BallistaCodec::new(Arc::new(BallistaLogicalExtensionCodec::default()), Arc::new(physical))
}
