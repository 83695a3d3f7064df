//! Prepared columns → what a program is called with.

use arrow::array::{Array, ArrayRef};
use tch::{Kind, TchError, Tensor};

use super::replica::{Channels, TorchReplica};
use super::tensor::{Tokens, borrow_column};
use crate::model::{Layout, Number, TransformKind};
use crate::transform::TokenColumn;

/// The argument that tells tokens from padding.
const MASK: &str = "attention_mask";

impl TorchReplica {
    /// Tensors of the CPU that are to become the program's arguments, and the padded size of tokens.
    pub(super) fn inputs(
        &self,
        columns: &[ArrayRef],
    ) -> Result<(Vec<Tensor>, Option<usize>), TchError> {
        match &self.transform {
            TransformKind::Tokenize { pad_id, arguments, max_tokens, .. } => {
                let no_tokens = || TchError::Convert("expected columns of token lists".to_owned());
                let tokens = columns.iter().map(Tokens::of).collect::<Option<Vec<_>>>();
                let tokens = tokens.filter(|tokens| tokens.len() == self.columns.len());
                let mut tokens = tokens.ok_or_else(no_tokens)?;
                let longest = *max_tokens as usize;
                let omits_mask = self.omits_masks && tokens.iter().all(Tokens::is_even);
                if !omits_mask {
                    let multiple = self.length_multiple;
                    tokens.iter_mut().for_each(|tokens| tokens.round_up(multiple, longest));
                }
                let ids = tokens.first().ok_or_else(no_tokens)?;
                let given = arguments.iter().filter(|name| !(omits_mask && *name == MASK));
                let tensors = given.map(|argument| {
                    let is_it = |column: &TokenColumn| column.argument() == argument;
                    match self.columns.iter().position(is_it) {
                        Some(at) => tokens[at].padded_with(self.columns[at].padding(*pad_id)),
                        None if argument == MASK => ids.mask(),
                        // Token types of single texts.
                        None => ids.zeros(),
                    }
                });
                Ok((tensors.collect::<Result<_, _>>()?, Some(ids.padded())))
            }
            TransformKind::Tensor => {
                let tensors = columns.iter().zip(&self.shapes).map(|(column, shape)| {
                    // SAFETY: whoever asks keeps the columns for as long as the tensors;
                    // `to_column` copies results that share their memory, and packages promise not to
                    // write to their arguments (docs/model-packages.md).
                    let mut tensor = unsafe { borrow_column(column) }?;
                    if let Some(shape) = shape {
                        let sizes = shape.iter().map(|size| i64::from(*size));
                        let sizes: Vec<i64> =
                            [column.len() as i64].into_iter().chain(sizes).collect();
                        tensor = tensor.f_view(sizes.as_slice())?;
                    }
                    Ok(tensor)
                });
                Ok((tensors.collect::<Result<_, TchError>>()?, None))
            }
            TransformKind::Image { crop, .. } => {
                let [column] = columns else {
                    return Err(TchError::Convert("expected one column of pixels".to_owned()));
                };
                let side = i64::from(*crop);
                // SAFETY: as above.
                let bytes = unsafe { borrow_column(column) }?;
                Ok((vec![bytes.f_view([column.len() as i64, side, side, 3])?], None))
            }
        }
    }

    /// The program's arguments, of inputs that are on its device. Bytes went there; what is made of them, four
    /// times as many, is made there.
    pub(super) fn arguments(
        &self,
        inputs: &[Tensor],
        channels: Option<&Channels>,
    ) -> Result<Vec<Tensor>, TchError> {
        match (&self.transform, channels) {
            (TransformKind::Image { layout, .. }, Some(channels)) => {
                inputs.iter().map(|bytes| self.pixels(bytes, *layout, channels)).collect()
            }
            _ => inputs.iter().map(|input| self.in_precision(input)).collect(),
        }
    }

    /// What images are normalized with; `None` for models of anything else.
    pub(super) fn channels(&self, device: tch::Device) -> Result<Option<Channels>, TchError> {
        let TransformKind::Image { mean, std, .. } = &self.transform else { return Ok(None) };
        let of_channels = |numbers: &[Number; 3]| {
            Tensor::f_from_slice(&numbers.map(|number| number.0 as f32))?.f_to(device)
        };
        Ok(Some(Channels { mean: of_channels(mean)?, std: of_channels(std)? }))
    }

    fn pixels(
        &self,
        bytes: &Tensor,
        layout: Layout,
        channels: &Channels,
    ) -> Result<Tensor, TchError> {
        let mut pixels = bytes.f_to_kind(Kind::Float)?;
        pixels = pixels.f_div_scalar_(255.0)?;
        pixels = pixels.f_sub_(&channels.mean)?;
        pixels = pixels.f_div_(&channels.std)?;
        if let Some(kind) = self.kind {
            pixels = pixels.f_to_kind(kind)?;
        }
        match layout {
            // The channels stay side by side in memory, which is what convolutions like best.
            Layout::Chw => pixels.f_permute([0, 3, 1, 2]),
            Layout::Hwc => Ok(pixels),
        }
    }

    /// The tensor itself, unless it is of floating point numbers in another format.
    fn in_precision(&self, tensor: &Tensor) -> Result<Tensor, TchError> {
        let found = tensor.f_kind()?;
        let is_float = matches!(found, Kind::Float | Kind::Double);
        match self.kind.filter(|kind| is_float && *kind != found) {
            Some(kind) => tensor.f_to_kind(kind),
            None => Ok(tensor.shallow_clone()),
        }
    }
}
