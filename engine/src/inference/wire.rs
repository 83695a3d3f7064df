//! The wire form of a model's transform and of its forward pass.
//!
//! Both carry the whole declaration, in the form that the catalog's files have: a worker needs no
//! catalog, and there is one definition of a declaration.

use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::physical_plan::ExecutionPlan;
use forebay_udf::runtime::Device;
use prost::Message;

use super::exec::InferenceExec;
use super::transform::TransformExec;
use crate::device::Placement;
use crate::wire::{self, ExprCodec, Time};

/// A [`TransformExec`] without its input.
#[derive(Clone, PartialEq, Message)]
pub struct Transform {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(bytes = "vec", repeated, tag = "2")]
    args: Vec<Vec<u8>>,
}

/// An [`InferenceExec`] without its input.
#[derive(Clone, PartialEq, Message)]
pub struct Inference {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(message, repeated, tag = "2")]
    outputs: Vec<Output>,
    #[prost(message, repeated, tag = "3")]
    devices: Vec<PlacedOn>,
    #[prost(message, optional, tag = "4")]
    no_progress_limit: Option<Time>,
}

/// One of the model's output columns.
#[derive(Clone, PartialEq, Message)]
struct Output {
    /// Missing if nobody needs the column.
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
}

/// Where one replica runs.
#[derive(Clone, PartialEq, Message)]
struct PlacedOn {
    #[prost(enumeration = "Kind", tag = "1")]
    kind: i32,
    #[prost(uint32, tag = "2")]
    ordinal: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum Kind {
    /// What a field that is missing reads as.
    Unknown = 0,
    Cpu = 1,
    Cuda = 2,
    Emulated = 3,
}

impl From<Device> for PlacedOn {
    fn from(device: Device) -> Self {
        let (kind, ordinal) = match device {
            Device::Cpu => (Kind::Cpu, 0),
            Device::Cuda(ordinal) => (Kind::Cuda, ordinal),
            Device::Emulated(ordinal) => (Kind::Emulated, ordinal),
        };
        Self { kind: kind.into(), ordinal: ordinal.into() }
    }
}

impl TryFrom<PlacedOn> for Device {
    type Error = datafusion::common::DataFusionError;

    fn try_from(device: PlacedOn) -> Result<Self> {
        let ordinal = u16::try_from(device.ordinal)
            .map_err(|_| exec_datafusion_err!("there is no device {}", device.ordinal))?;
        match device.kind() {
            Kind::Cpu => Ok(Self::Cpu),
            Kind::Cuda => Ok(Self::Cuda(ordinal)),
            Kind::Emulated => Ok(Self::Emulated(ordinal)),
            Kind::Unknown => exec_err!("there is no kind {} of devices", device.kind),
        }
    }
}

impl TransformExec {
    /// All but the input.
    ///
    /// # Errors
    /// If an argument or the declaration has no wire form.
    pub fn to_wire(&self, exprs: &dyn ExprCodec) -> Result<Transform> {
        Ok(Transform {
            model: self.model().to_text()?,
            args: self.args().iter().map(|arg| exprs.encode(arg)).collect::<Result<_>>()?,
        })
    }

    /// The transform of a message, over `input`.
    ///
    /// # Errors
    /// If there is no such model, or an argument is not one over columns of `input`.
    pub fn from_wire(
        Transform { model, args }: Transform,
        input: Arc<dyn ExecutionPlan>,
        exprs: &dyn ExprCodec,
    ) -> Result<Self> {
        let schema = input.schema();
        let args = args.iter().map(|arg| exprs.decode(arg, &schema)).collect::<Result<_>>()?;
        Self::try_new(input, wire::model(&model)?, args)
    }
}

impl InferenceExec {
    /// All but the input.
    ///
    /// # Errors
    /// If the declaration has no wire form.
    pub fn to_wire(&self) -> Result<Inference> {
        let outputs = self.output_names().iter();
        Ok(Inference {
            model: self.model().to_text()?,
            outputs: outputs.map(|name| Output { name: name.clone() }).collect(),
            devices: self.placement().devices.iter().copied().map(PlacedOn::from).collect(),
            no_progress_limit: self.no_progress_limit().map(Time::from),
        })
    }

    /// The operator of a message, over `input`.
    ///
    /// # Errors
    /// If there is no such model or device, or it is not one over prepared columns of `input`.
    pub fn from_wire(message: Inference, input: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Inference { model, outputs, devices, no_progress_limit } = message;
        let devices = devices.into_iter().map(TryInto::try_into).collect::<Result<_>>()?;
        let names = outputs.into_iter().map(|output| output.name).collect();
        let limit = no_progress_limit.map(TryInto::try_into).transpose()?;
        let placement = Placement { devices };
        let inference = Self::try_new(input, wire::model(&model)?, names, placement)?;
        Ok(inference.with_no_progress_limit(limit))
    }
}
