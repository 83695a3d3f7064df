//! What Ballista needs to run our jobs, behind its public traits. The only folder that knows how it works inside:
//! elsewhere its messages are passed on, nothing more.
//!
//! - `session`: functions, options and codec that the scheduler and every worker share
//! - `calls`: how connections are made in its name
//! - `plan_parts`: a plan as messages that are not too deep; `part_codec`: what stands between them
//! - `jobs`: plans that clients send become its jobs; `job_ids`: what these are called
//! - `restore`: those that an earlier scheduler had become its jobs again
//! - `cluster_state`: binds tasks to workers, in place of its own rule; `task_plan`: fills a stage's plan in for
//!   one of them; `wake`: makes its event loop look
//! - `execution_graph`: what it sees of a job
//! - `status`: how a task ended, from the worker to the graph
//! - `workers`: what workers say of themselves and their tasks

pub(crate) mod calls;
pub(crate) mod cluster_state;
mod execution_graph;
pub(crate) mod job_ids;
pub(crate) mod jobs;
mod part_codec;
pub(crate) mod plan_parts;
mod restore;
pub(crate) mod session;
pub(crate) mod status;
mod task_plan;
pub(crate) mod wake;
pub(crate) mod workers;

use ballista_scheduler::scheduler_server::SchedulerServer;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};

/// Its scheduler.
pub(crate) type Ballista = SchedulerServer<LogicalPlanNode, PhysicalPlanNode>;
