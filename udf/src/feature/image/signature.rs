//! Which functions of images there are, and what they take.

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::logical_expr::Signature;

use super::super::arguments::{OnBadValue, is_bytes};
use super::column::{image_type, is_image};

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Function {
    /// `(bytes [, mode])` → image
    Decode,
    /// `(bytes)` → format, size and mode
    Info,
    /// `(image, width, height [, filter])` → image
    Resize,
    /// `(image, left, top, width, height)` → image
    Crop,
    /// `(image, size)` or `(image, width, height)` → image
    CenterCrop,
    /// `(image, format [, quality])` → bytes
    Encode,
    /// `(image)` or `(image, height, width [, mode])` → tensor
    ToTensor,
    /// `(bytes, resize, crop)` → tensor
    Preprocess,
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Image,
    Number,
    Text,
}

impl Function {
    pub(super) const ALL: [Self; 8] = [
        Self::Decode,
        Self::Info,
        Self::Resize,
        Self::Crop,
        Self::CenterCrop,
        Self::Encode,
        Self::ToTensor,
        Self::Preprocess,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Decode => "image_decode",
            Self::Info => "image_info",
            Self::Resize => "image_resize",
            Self::Crop => "image_crop",
            Self::CenterCrop => "center_crop",
            Self::Encode => "image_encode",
            Self::ToTensor => "image_to_tensor",
            Self::Preprocess => "image_preprocess",
        }
    }

    /// The arguments, and how many must be there at least.
    pub(super) fn parameters(self) -> (&'static [(&'static str, Kind)], usize) {
        use Kind::{Bytes, Image, Number, Text};
        match self {
            Self::Decode => (&[("bytes", Bytes), ("mode", Text)], 1),
            Self::Info => (&[("bytes", Bytes)], 1),
            Self::Resize => {
                (&[("image", Image), ("width", Number), ("height", Number), ("filter", Text)], 3)
            }
            Self::Crop => (
                &[
                    ("image", Image),
                    ("left", Number),
                    ("top", Number),
                    ("width", Number),
                    ("height", Number),
                ],
                5,
            ),
            Self::CenterCrop => (&[("image", Image), ("width", Number), ("height", Number)], 2),
            Self::Encode => (&[("image", Image), ("format", Text), ("quality", Number)], 2),
            Self::ToTensor => {
                (&[("image", Image), ("height", Number), ("width", Number), ("mode", Text)], 1)
            }
            Self::Preprocess => (&[("bytes", Bytes), ("resize", Number), ("crop", Number)], 3),
        }
    }

    /// `image_decode(bytes [, mode])`
    pub(super) fn usage(self) -> String {
        let (parameters, required) = self.parameters();
        let names = parameters.iter().enumerate().map(|(at, (name, _))| match at {
            0 => (*name).to_owned(),
            at if at < required => format!(", {name}"),
            _ => format!(" [, {name}]"),
        });
        format!("{}({})", self.name(), names.collect::<String>())
    }
}

/// A function of images under one policy.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ImageFunction {
    pub(super) function: Function,
    pub(super) on_bad_value: OnBadValue,
    pub(super) name: String,
    pub(super) signature: Signature,
}

impl Kind {
    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Bytes => "BINARY, the bytes of an image file",
            Self::Image => "an image, as image_decode gives it",
            Self::Number => "a whole number",
            Self::Text => "STRING",
        }
    }
}

pub(super) fn coerced(found: &DataType, kind: Kind) -> Option<DataType> {
    match kind {
        Kind::Bytes if is_bytes(found) => Some(found.clone()),
        Kind::Bytes => found.is_null().then_some(DataType::Binary),
        Kind::Image => (is_image(found) || found.is_null()).then(image_type),
        Kind::Number => (found.is_integer() || found.is_null()).then_some(DataType::Int64),
        Kind::Text => (found.is_string() || found.is_null()).then_some(DataType::Utf8),
    }
}

pub(super) fn info_fields() -> Fields {
    Fields::from(vec![
        Field::new("format", DataType::Utf8, true),
        Field::new("height", DataType::Int32, true),
        Field::new("width", DataType::Int32, true),
        Field::new("mode", DataType::Utf8, true),
    ])
}
