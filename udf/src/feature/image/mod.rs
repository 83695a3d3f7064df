//! Images: from bytes to pixels and back.
//!
//! A decoded image is a struct of its bytes and what they mean ([`column`]); images of one size are
//! tensors, Arrow's `fixed_shape_tensor` of `UInt8`. Pixels are 8 bits per channel, row by row from
//! the top, channels side by side (`[height, width, channels]`). An image is upright: what EXIF says
//! about how the camera was held is applied when it is decoded.
//!
//! Decoders are fed with whatever is in a column. So what an image may cost is bounded before it is
//! decoded ([`limits`]), and a decoder that panics spoils its row only ([`decode`]).
//!
//! Which crates decode and resize, and how they were chosen: `docs/images.md`.

mod column;
mod compute;
mod decode;
mod encode;
mod functions;
mod jpeg;
mod limits;
mod orientation;
mod pixels;
mod png;
mod preprocess;
mod resize;
mod signature;
#[cfg(test)]
mod tests;

pub(super) use functions::functions;
pub use jpeg::JPEG_DECODER;
pub use preprocess::{Fit, Middle};
pub(crate) use preprocess::{Recipe, Workspace};
pub use resize::Filter;
